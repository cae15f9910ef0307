//! What names tell of checkpoints: what is one by itself, and what is a part of one.

/// How the name of each directory of a trainer's begins; a number follows. Hugging Face's Trainer, and Accelerate.
const TRAINERS: [&[u8]; 2] = [b"checkpoint-", b"checkpoint_"];
/// What is in the names of files of which each process saves its own.
const PARTS: [&str; 5] = ["rank", "rng_state", "random_states", "consolidated", "shard"];
/// How files are called that stand for a whole run, beside those of its steps.
const WHOLE: [&str; 4] = ["last", "latest", "best", "final"];
/// Between the numbers of a part: `model-00001-of-00002.safetensors`.
const OF: &str = "-of-";

/// Whether a directory is called `checkpoint-` or `checkpoint_` and a number, as trainers call their own.
pub fn is_called_as_trainers(name: &[u8]) -> bool {
    let number = TRAINERS.iter().find_map(|begin| name.strip_prefix(*begin));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

/// Whether each of the files of one directory that have tensors is a checkpoint by itself, as one for each step is.
/// They are parts if one of them is called so, and if they are called by more than numbers differently.
pub fn are_whole(names: &[&str]) -> bool {
    let mut families = names.iter().map(|name| family(name)).filter(|name| !WHOLE.contains(&stem(name)));
    let first = families.next();
    !names.iter().any(|name| is_part(name)) && families.all(|other| Some(other) == first)
}

/// Whether a file is one of several that are one checkpoint.
fn is_part(name: &str) -> bool {
    let numbered = stem(name).rsplit_once(OF).is_some_and(|(before, count)| {
        let number = before.rsplit('-').next().unwrap_or_default();
        [number, count].iter().all(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let name = name.to_ascii_lowercase();
    numbered || PARTS.iter().any(|part| name.contains(part))
}

fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

/// A name without its numbers.
fn family(name: &str) -> String {
    name.chars().filter(|char| !char.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_trainers_have_a_number_and_no_more() {
        for name in ["checkpoint-5", "checkpoint_0", "checkpoint-00012"] {
            assert!(is_called_as_trainers(name.as_bytes()), "{name}");
        }
        for name in ["checkpoint-", "checkpoint-best", "checkpoint", "checkpoint-5.tmp", "tmp-checkpoint-5", "step-5"] {
            assert!(!is_called_as_trainers(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn files_for_steps_are_whole_and_files_of_one_step_are_parts() {
        let whole: [&[&str]; 6] = [
            &[],
            &["model.safetensors"],
            &["state-of-the-art.pt"],
            &["step-9.pt", "step-10.pt"],
            &["epoch=1-step=20.ckpt", "epoch=2-step=40.ckpt", "last.ckpt"],
            &["best.pt", "last.pt"],
        ];
        for names in whole {
            assert!(are_whole(names), "{names:?}");
        }
        let parts: [&[&str]; 8] = [
            &["model-00001-of-00002.safetensors"],
            &["pytorch_model-1-of-3.pt", "x.pt"],
            &["model.safetensors", "optimizer.pt"],
            &["step-9.pt", "step-9.optimizer.pt"],
            &["rng_state_0.pth", "rng_state_1.pth"],
            &["mp_rank_00_model_states.pt"],
            &["consolidated.00.pth"],
            &["last.pt", "model.pt", "optimizer.pt"],
        ];
        for names in parts {
            assert!(!are_whole(names), "{names:?}");
        }
    }
}
