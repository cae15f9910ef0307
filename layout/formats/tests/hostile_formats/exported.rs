//! Programs that torch.export wrote, as far as they are checkpoints.

use super::*;

fn sample(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(name)).unwrap()
}

/// As torch up to 2.6 has it.
fn old(weights: &[u8]) -> Vec<u8> {
    zip(&[
        member("serialized_exported_program.json", b"{\"graph_module\": {}}"),
        member("serialized_state_dict.pt", weights),
        member("serialized_constants.pt", &sample("torch2-tensor.pt")),
        member("version", b"7.3"),
    ])
}

/// As it has it since: in an archive with a name, and with programs that have names.
fn new(weights: &[&[u8]]) -> Vec<u8> {
    let mut members = vec![member("model/archive_format", b"pt2"), member("model/models/a.json", b"{}")];
    for (n, weights) in weights.iter().enumerate() {
        members.push(member(&format!("model/data/weights/{n}.pt"), weights));
    }
    members.push(member("model/data/constants/a.pt", &sample("torch2-tensor.pt")));
    members.push(member("model/byteorder", b"little"));
    zip(&members)
}

/// Of a tensor its name, shape and elements, and how far it is from where its storage begins.
type Seen = (String, Vec<u64>, Vec<u8>, u64);

fn of(bytes: &[u8]) -> (Recognised, Vec<Seen>) {
    let mut all = Vec::new();
    let found = recognise(&bytes, &mut |tensor| {
        let mut elements = Vec::new();
        read_tensor(&bytes, &tensor, &mut |piece| {
            elements.extend_from_slice(piece);
            ControlFlow::Continue(())
        })
        .unwrap();
        let storage = tensor.storage.as_ref().unwrap();
        let name = String::from_utf8(tensor.name.clone()).unwrap();
        all.push((name, tensor.shape.clone(), elements, tensor.range().0 - storage.offset));
        ControlFlow::Continue(())
    });
    (found, all)
}

#[test]
fn the_weights_are_those_of_the_checkpoint_in_it() {
    for name in ["torch2-views.pt", "torch2-checkpoint.pt", "torch2-signs.pt"] {
        let weights = sample(name);
        let (alone, wanted) = of(&weights);
        assert!(alone.format == Format::Torch && wanted.len() > 1);
        for file in [old(&weights), new(&[&weights])] {
            let (found, tensors) = of(&file);
            assert_eq!((found.format, found.end, found.cut), (Format::Torch, file.len() as u64, false), "{name}");
            assert_eq!((found.reason, found.calls), (None, alone.calls.clone()), "{name}");
            assert!(tensors == wanted, "{name}");
        }
    }
    // Of several programs the first one's, which is said.
    let weights = sample("torch2-views.pt");
    let (found, tensors) = of(&new(&[&weights, &weights, &weights]));
    assert_eq!(found.reason.as_deref(), Some("weights of 2 more programs are not looked into"));
    assert!(tensors == of(&weights).1);
}

#[test]
fn what_is_wrong_in_it_is_told() {
    let weights = sample("torch2-views.pt");
    for file in [old(&weights), new(&[&weights])] {
        for end in (12..file.len()).step_by(97) {
            let found = survives(&file[..end]);
            assert!(found.cut && found.tensors == 0, "{end}: {:?}", found.reason);
        }
    }
    for end in (0..weights.len()).step_by(331) {
        let found = survives(&old(&weights[..end]));
        assert!(found.tensors == 0 && found.reason.is_some() && found.format == Format::Opaque, "{end}");
    }
    opaque(&old(b"no weights at all"), "zip");
    opaque(&old(&zip(&[member("a.npy", b"no array")])), "no checkpoint");
    opaque(&old(&[&weights[..], &weights].concat()), "no checkpoint");
    // In itself, and so on.
    opaque(&old(&old(&old(&weights))), "no checkpoint");
    let squeezed = Member { method: 8, size: Some(100), ..member("serialized_state_dict.pt", &weights) };
    opaque(&zip(&[squeezed]), "compressed");
    // As newer versions have it: each tensor is a member, without a name.
    let apart = [member("m/archive_format", b"pt2"), member("m/data/weights/weight_0", &[0; 64])];
    opaque(&zip(&apart), "not as torch.save has them");
    opaque(&zip(&[member("other.pt", &weights)]), "without arrays");
}
