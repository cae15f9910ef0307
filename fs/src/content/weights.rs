//! Which files of a directory may be the weights of a model: what a trainer goes on from needs some.
//!
//! Weights have many names, and what is saved beside them has few. So what is not known to be something else counts as
//! weights if it has tensors: better one that is not whole is missed than a good one called incomplete.

use std::collections::HashMap;

use tensorfs_layout::Ino;

use super::complete::End;

/// How the names of files and directories begin in which trainers save what is no weights.
const BESIDE: [&[u8]; 9] = [
    b"optimizer",
    b"scheduler",
    b"scaler",
    b"sampler",
    b"dl_state_dict",
    b"rng_state",
    b"random_states",
    b"training_args",
    b"trainer_state",
];
/// What DeepSpeed has in its names.
const OPTIMIZER_OF_DEEPSPEED: &[u8] = b"optim_states";
const MODEL_OF_DEEPSPEED: &[u8] = b"model_states";
const ZERO: &[u8] = b"zero_pp_rank_";
/// How files of weights end that are of formats that are not recognised, or not always.
const UNKNOWN: [&[u8]; 8] = [b".bin", b".pt", b".pth", b".pkl", b".ckpt", b".msgpack", b".pdparams", b".onnx"];
/// How weights end that are in several files, and what is in the name of the index that names all of those, before
/// `.json`: a variant may stand between (`model.safetensors.index.fp16.json`).
const SHARDED: [(&[u8], &[u8]); 2] = [(b".safetensors", b".safetensors.index."), (b".bin", b".bin.index.")];

/// Whether a file or a directory is called as what trainers save beside weights.
pub(super) fn is_beside_weights(name: &[u8]) -> bool {
    BESIDE.iter().any(|begin| name.starts_with(begin)) || has(name, OPTIMIZER_OF_DEEPSPEED)
}

/// Whether a file that is all there may be weights, by its name and what is known of its end.
pub(super) fn may_be_weights(name: &[u8], end: End) -> bool {
    if is_beside_weights(name) {
        return false;
    }
    match end {
        End::Missing => false,
        // Where each process of DeepSpeed has a part of all weights, that is in what the optimizer has, beside these.
        End::There { tensors } => tensors > 0 || has(name, MODEL_OF_DEEPSPEED),
        End::Untold => true,
        End::Opaque => UNKNOWN.iter().any(|end| name.ends_with(end)),
    }
}

/// Whether DeepSpeed calls a file a model's that may have none of the weights: those are the optimizer's (ZeRO-3).
pub(super) fn needs_its_optimizer(name: &[u8]) -> bool {
    name.starts_with(ZERO) && has(name, MODEL_OF_DEEPSPEED)
}

/// Whether what DeepSpeed's optimizer has is among these files.
pub(super) fn have_the_optimizer(files: &HashMap<Vec<u8>, Ino>) -> bool {
    files.keys().any(|name| has(name, OPTIMIZER_OF_DEEPSPEED))
}

fn has(name: &[u8], word: &[u8]) -> bool {
    name.windows(word.len()).any(|part| part == word)
}

/// Whether one of the files of a directory is a numbered part of weights whose index is not there: without one nobody
/// finds them.
pub(super) fn lack_their_index(files: &HashMap<Vec<u8>, Ino>) -> bool {
    SHARDED.iter().any(|(end, index)| {
        let is_part = |name: &Vec<u8>| name.strip_suffix(*end).is_some_and(is_numbered);
        files.keys().any(is_part) && !files.keys().any(|name| has(name, index) && name.ends_with(b".json"))
    })
}

/// Whether a name without its ending says which of how many parts it is: `model-00001-of-00002`.
fn is_numbered(stem: &[u8]) -> bool {
    let mut words = stem.rsplit(|byte| *byte == b'-');
    let is_number = |word: &[u8]| word.len() >= 5 && word.iter().all(u8::is_ascii_digit);
    words.next().is_some_and(is_number) && words.next() == Some(b"of") && words.next().is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_weights_is_told_by_its_name_where_it_has_tensors() {
        let has_tensors = End::There { tensors: 3 };
        for name in [
            "optimizer.pt",
            "optimizer_0",
            "optimizer.bin",
            "scheduler.pt",
            "scaler.pt",
            "rng_state_1.pth",
            "random_states_0.pkl",
            "training_args.bin",
            "sampler_1.bin",
            "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        ] {
            assert!(is_beside_weights(name.as_bytes()), "{name}");
            assert!(![has_tensors, End::Untold, End::Opaque].iter().any(|end| may_be_weights(name.as_bytes(), *end)));
        }
        let may_be = |name: &str| {
            let ends = [has_tensors, End::Untold, End::Opaque, End::There { tensors: 0 }, End::Missing];
            ends.map(|end| may_be_weights(name.as_bytes(), end))
        };
        for name in ["model.safetensors", "anything", "tf_model.h5"] {
            assert_eq!(may_be(name), [true, true, false, false, false], "{name}");
        }
        for name in ["pytorch_model.bin", "flax_model.msgpack", "custom_checkpoint_0.pkl"] {
            assert_eq!(may_be(name), [true, true, true, false, false], "{name}");
        }
        let zero = "zero_pp_rank_0_mp_rank_00_model_states.pt";
        assert_eq!(may_be(zero), [true, true, true, true, false]);
        assert!(needs_its_optimizer(zero.as_bytes()) && !needs_its_optimizer(b"mp_rank_00_model_states.pt"));
        let have = |name: &str| have_the_optimizer(&HashMap::from([(name.as_bytes().to_vec(), Ino(7))]));
        assert!(have("zero_pp_rank_0_mp_rank_00_optim_states.pt") && !have(zero));
    }

    #[test]
    fn numbered_parts_need_the_index_of_their_format() {
        let lack =
            |names: &[&str]| lack_their_index(&names.iter().map(|name| (name.as_bytes().into(), Ino(7))).collect());
        let (part, index) = ("model-00002-of-00002.safetensors", "model.safetensors.index.json");
        assert!(lack(&[part]) && lack(&[part, "pytorch_model.bin.index.json"]));
        assert!(lack(&["pytorch_model-00001-of-00002.bin", index]));
        assert!(!lack(&[part, index]) && !lack(&[part, "model.safetensors.index.fp16.json"]));
        for name in [
            "model.safetensors",
            "model-1.safetensors",
            "rank0-of-2-pytorch_model.bin",
            "one-of-a-kind.bin",
            "-of-00002.safetensors",
            "00001-00002.safetensors",
            "model-00001-of-00002.pt",
        ] {
            assert!(!lack(&[name]), "{name}");
        }
    }
}
