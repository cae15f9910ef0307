//! Keras' zips of an HDF5 file.

use super::*;

fn sample(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(name)).unwrap()
}

fn model(weights: &[u8]) -> Vec<u8> {
    let texts = [member("metadata.json", b"{\"keras_version\": \"3.0.0\"}"), member("config.json", b"{}")];
    zip(&[&texts[..], &[member("model.weights.h5", weights)]].concat())
}

#[test]
fn the_weights_are_those_of_the_file_in_it() {
    let weights = sample("keras.weights.h5");
    let file = model(&weights);
    let of = |bytes: &[u8]| {
        let mut all = Vec::new();
        let found = recognise(&bytes, &mut |tensor| {
            let mut elements = Vec::new();
            let is_read = read_tensor(&bytes, &tensor, &mut |piece| {
                elements.extend_from_slice(piece);
                ControlFlow::Continue(())
            });
            all.push((tensor.name.clone(), tensor.shape.clone(), is_read.is_ok(), elements));
            ControlFlow::Continue(())
        });
        (found, all)
    };
    let ((found, tensors), (_, wanted)) = (of(&file), of(&weights));
    assert_eq!((found.format, found.end, found.cut, found.reason), (Format::Hdf5, file.len() as u64, false, None));
    assert!(tensors.len() > 1 && tensors == wanted);
    assert!(tensors.iter().any(|(.., elements)| elements.iter().any(|byte| *byte != 0)));
}

#[test]
fn what_is_wrong_in_it_is_told() {
    let weights = sample("keras.weights.h5");
    let file = model(&weights);
    for end in (12..file.len()).step_by(97) {
        assert!(survives(&file[..end]).cut, "{end}");
    }
    for end in (0..weights.len()).step_by(331) {
        let found = survives(&model(&weights[..end]));
        assert!(found.tensors == 0 || found.reason.is_some() || end > weights.len() / 2, "{end}");
    }
    opaque(&model(b"no weights at all"), "without weights");
    let squeezed = Member { method: 8, size: Some(100), ..member("model.weights.h5", &weights) };
    opaque(&zip(&[squeezed]), "compressed");
    opaque(&zip(&[member("other.h5", &weights)]), "without arrays");
}
