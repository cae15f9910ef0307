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
    // Nothing says what the members are.
    let apart = [member("m/archive_format", b"pt2"), member("m/data/weights/weight_0", &[0; 64])];
    opaque(&zip(&apart), "not as torch.save has them");
    opaque(&zip(&[member("other.pt", &weights)]), "without arrays");
}

/// As torch has it since 2.8: members of 64 bytes, and what is said of weights.
fn newest(said: &str, more: Vec<Member>) -> Vec<u8> {
    let config = format!(r#"{{"config": {{{said}}}}}"#);
    let bytes: Vec<u8> = (0..64).collect();
    let mut members = vec![
        member("m/archive_format", b"pt2"),
        member("m/data/weights/weight_0", &bytes),
        member("m/data/weights/weight_1", b""),
        member("m/data/weights/model_weights_config.json", config.as_bytes()),
    ];
    members.extend(more);
    zip(&members)
}

fn weight(name: &str, path: &str, dtype: &str, sizes: &str, strides: &str, more: &str) -> String {
    format!(
        r#""{name}": {{"path_name": "{path}", "is_param": true, "use_pickle": false, {more} "tensor_meta": {{
            "dtype": {dtype}, "sizes": {sizes}, "strides": {strides}, "storage_offset": {{"as_int": 2}},
            "layout": 7}}}}"#
    )
}

/// What is read of views of members, and what is left out and said.
#[test]
fn weights_are_views_of_members() {
    let (two, one) = (r#"[{"as_int": 2}, {"as_int": 3}]"#, r#"[{"as_int": 1}, {"as_int": 2}]"#);
    let a = weight("a", "weight_0", "7", two, one, "");
    let (found, tensors) = of(&newest(&a, vec![]));
    let wanted: Vec<u8> = [0_u8, 4, 8, 12, 16, 20].iter().flat_map(|at| (8 + at)..(8 + at + 4)).collect();
    assert_eq!((found.format, found.reason, found.tensors), (Format::Torch, None, 1));
    assert_eq!(tensors, [("a".to_owned(), vec![2, 3], wanted, 8)]);
    // Of what is left out the first one and the number are told, and the rest is there.
    let odd = [
        weight("unsaved", "weight_1", "7", two, one, ""),
        weight("type", "weight_0", "99", two, one, ""),
        weight("symbol", "weight_0", "7", r#"[{"as_name": "s0"}]"#, "[1]", ""),
        weight("negative", "weight_0", "7", "[2]", "[-1]", ""),
        r#""nothing": {"path_name": "weight_0", "use_pickle": false}"#.to_owned(),
        r#""null": {"path_name": "weight_0", "use_pickle": true, "tensor_meta": null}"#.to_owned(),
    ];
    for one in &odd {
        let (found, tensors) = of(&newest(&format!("{one}, {a}"), vec![]));
        let reason = found.reason.unwrap();
        assert!(tensors.len() == 1 && found.format == Format::Torch && reason.contains(": "), "{one}: {reason}");
    }
    let (found, _) = of(&newest(&format!("{}, {a}", odd.join(", ")), vec![]));
    let reason = found.reason.unwrap();
    assert!(reason.starts_with("unsaved: its elements were not saved; and 5 more"), "{reason}");
    // None of them saved is a program all the same.
    let (found, _) = of(&newest(&odd[0], vec![]));
    assert_eq!((found.format, found.tensors, found.cut), (Format::Torch, 0, false));
    // The order of bytes is torch's own word for it, of this archive.
    let big = |name: &str, text: &[u8]| {
        let mut seen = None;
        let _ = recognise(&&newest(&a, vec![member(name, text)])[..], &mut |tensor| {
            seen = Some(tensor.big_endian);
            ControlFlow::Continue(())
        });
        seen.unwrap()
    };
    assert!(big("m/byteorder", b"big") && !big("m/byteorder", b"little") && !big("m/byteorder", b"what is this"));
    assert!(!big("other/byteorder", b"big") && !big("byteorder", b"big"));
    // A zip of somebody else's with JSON of that name is none.
    let bytes = zip(&[member("m/data/weights/model_weights_config.json", b"{}"), member("m/byteorder", b"?")]);
    opaque(&bytes, "without arrays");
}

#[test]
fn pickled_weights_are_listed_and_checked() {
    let pickled = |sizes: &str| {
        format!(
            r#""p": {{"path_name": "weight_0", "use_pickle": true, "tensor_meta": {{"dtype": 7, "sizes": {sizes}}}}}"#
        )
    };
    let mut seen = Vec::new();
    let bytes = newest(&pickled(r#"[{"as_int": 4}, {"as_int": 1000}]"#), vec![]);
    let found = recognise(&&bytes[..], &mut |tensor| {
        assert_eq!(tensor.fault(bytes.len() as u64), None);
        seen.push((tensor.shape.clone(), tensor.descr.clone().unwrap(), npy_header(&tensor).is_some()));
        ControlFlow::Continue(())
    });
    assert_eq!((found.tensors, found.reason), (1, None));
    assert_eq!(seen, [(vec![4, 1000], "float32, pickled".to_owned(), false)]);
    opaque(&newest(&pickled("[4611686018427387904, 4611686018427387904]"), vec![]), "more elements");
    opaque(&newest(&pickled(&format!("[{}1]", "1,".repeat(64))), vec![]), "dimensions");
}

#[test]
fn weights_that_cannot_be_are_none() {
    let (two, one) = ("[2, 3]", "[1, 2]");
    opaque(&newest(&weight("a", "weight_9", "7", two, one, ""), vec![]), "not there");
    opaque(&newest(&weight("a", "weight_0", "7", "[2, 30]", one, ""), vec![]), "larger than its storage");
    opaque(&newest(&weight("a", "weight_0", "7", two, "[1]", ""), vec![]), "strides");
    opaque(&newest(&weight("a", "weight_0", "7", two, "[9223372036854775807, 2]", ""), vec![]), "larger");
    let a = weight("a", "weight_0", "7", two, one, "");
    opaque(&newest(&format!("{a}, {a}"), vec![]), "one name");
    opaque(&newest(r#""a": {}"#, vec![]), "no member");
    opaque(&newest(r#""a": 7"#, vec![]), "no member");
    opaque(
        &newest(&weight("a", "weight_0", "7", two, one, &format!(r#""x": "{}","#, "y".repeat(300_000))), vec![]),
        "too much",
    );
    opaque(&newest("\"a", vec![]), "JSON");
    let squeezed = Member { method: 8, size: Some(100), ..member("m/data/weights/weight_2", &[0; 9]) };
    opaque(&newest(&weight("a", "weight_2", "7", two, one, ""), vec![squeezed]), "compressed");
    let bytes = newest(&a, vec![]);
    for end in (12..bytes.len()).step_by(23) {
        assert_eq!(survives(&bytes[..end]).tensors, 0, "{end}");
    }
    // Of several programs the first one's.
    let other = member("m/data/weights/other_weights_config.json", b"{}");
    let (found, _) = of(&newest(&a, vec![other]));
    assert_eq!(found.reason.as_deref(), Some("weights of 1 more programs are not looked into"));
}
