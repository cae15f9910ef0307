//! What names tell of checkpoints: what is one by itself, and what is a part of one.

/// How the name of each directory of a trainer's begins; a number follows. Hugging Face's Trainer, and Accelerate.
const TRAINERS: [&[u8]; 2] = [b"checkpoint-", b"checkpoint_"];
/// How the names of what is not finished begin, or what is in them.
const UNFINISHED: &[u8] = b"tmp-";
const ORBAX: &[u8] = b".orbax-checkpoint-tmp";
/// What is in the names of files of which each process saves its own.
const PARTS: [&str; 5] = ["rank", "rng_state", "random_states", "consolidated", "shard"];
/// How files are called that stand for a whole run, beside those of its steps.
const WHOLE: [&str; 4] = ["last", "latest", "best", "final"];
/// What stands beside these in such a name, and says nothing.
const GENERAL: [&str; 3] = ["checkpoint", "model", "ckpt"];
/// Between the numbers of a part: `model-00001-of-00002.safetensors`.
const OF: &str = "-of-";

/// Whether a directory is called `checkpoint-` or `checkpoint_` and a number, as trainers call their own. Theirs has no
/// zeroes in front, as Ray's has.
pub fn is_called_as_trainers(name: &[u8]) -> bool {
    let number = TRAINERS.iter().find_map(|begin| name.strip_prefix(*begin)).unwrap_or_default();
    let is_padded = number.len() > 1 && number[0] == b'0';
    !number.is_empty() && !is_padded && number.iter().all(u8::is_ascii_digit)
}

/// Whether something is called as what a program has not finished yet: `tmp-checkpoint-5`, and what Orbax renames last.
pub fn is_unfinished(name: &[u8]) -> bool {
    name.starts_with(UNFINISHED) || is_unfinished_by_orbax(name)
}

/// Whether something is called as what Orbax has not finished yet.
pub(super) fn is_unfinished_by_orbax(name: &[u8]) -> bool {
    name.windows(ORBAX.len()).any(|part| part == ORBAX)
}

/// Whether each of the files of one directory that have tensors is a checkpoint by itself, as one for each step is.
/// They are parts if one of them is called so, and if they are called by more than numbers differently.
pub fn are_whole(names: &[&str]) -> bool {
    if names.iter().any(|name| is_part(name)) {
        return false;
    }
    let (runs, steps): (Vec<Called>, Vec<Called>) = names.iter().map(|name| called(name)).partition(Called::is_of_run);
    let Some(first) = steps.first().or_else(|| runs.first()) else { return true };
    // `best.pt` and `last.pt`, also in words of their own (`model_best.pth.tar`), or as the steps are called.
    let is_one = |one: &Called| one.rest.is_empty() || one.is_general() || one.rest == first.rest;
    let is_alone = |one: &Called| runs.iter().all(|other| other.of_run != one.of_run || other.rest == one.rest);
    steps.iter().all(|step| step == first) && runs.iter().all(|one| is_one(one) && is_alone(one))
}

/// What a name says, but for its numbers.
#[derive(PartialEq, Eq)]
struct Called {
    /// For what of a run it stands.
    of_run: Option<&'static str>,
    /// Its other words.
    rest: Vec<String>,
    ending: String,
}

impl Called {
    fn is_of_run(&self) -> bool {
        self.of_run.is_some()
    }

    /// Whether its words say nothing of what is in it.
    fn is_general(&self) -> bool {
        matches!(&*self.rest, [word] if GENERAL.contains(&&**word))
    }
}

fn called(name: &str) -> Called {
    let name = name.to_ascii_lowercase();
    let stem = stem(&name);
    let mut called = Called { of_run: None, rest: Vec::new(), ending: name[stem.len()..].to_owned() };
    for word in stem.split(|char: char| !char.is_alphanumeric()) {
        let letters: String = word.chars().filter(|char| !char.is_ascii_digit()).collect();
        // `last-v1.ckpt` is that of a second run.
        let is_version = letters == "v" && word.len() > 1;
        match WHOLE.iter().find(|whole| **whole == letters) {
            Some(whole) if called.of_run.is_none() => called.of_run = Some(whole),
            _ if letters.is_empty() || is_version => {}
            _ => called.rest.push(letters),
        }
    }
    called
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

/// A name without its ending, and without `.tar` behind that.
fn stem(name: &str) -> &str {
    let name = name.strip_suffix(".tar").unwrap_or(name);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_trainers_have_a_number_and_no_more() {
        for name in ["checkpoint-5", "checkpoint_0", "checkpoint-10200"] {
            assert!(is_called_as_trainers(name.as_bytes()), "{name}");
        }
        let others = ["checkpoint-", "checkpoint-best", "checkpoint", "checkpoint-5.tmp", "tmp-checkpoint-5", "step-5"];
        for name in others.into_iter().chain(["checkpoint_000003"]) {
            assert!(!is_called_as_trainers(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn what_is_not_finished_is_called_so() {
        for name in ["tmp-checkpoint-5", "7.orbax-checkpoint-tmp-1700000000", "default.orbax-checkpoint-tmp"] {
            assert!(is_unfinished(name.as_bytes()), "{name}");
        }
        for name in ["7", "checkpoint-5", "x-tmp-5", "orbax-checkpoint"] {
            assert!(!is_unfinished(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn files_for_steps_are_whole_and_files_of_one_step_are_parts() {
        let whole: [&[&str]; 12] = [
            &[],
            &["model.safetensors"],
            &["state-of-the-art.pt"],
            &["step-9.pt", "step-10.pt"],
            &["epoch=1-step=20.ckpt", "epoch=2-step=40.ckpt", "last.ckpt"],
            &["best.pt", "last.pt"],
            &["last.ckpt", "last-v1.ckpt", "epoch=0-step=9.ckpt", "epoch=0-step=9-v2.ckpt"],
            &["checkpoint1.pt", "checkpoint_1_500.pt", "checkpoint_best.pt", "checkpoint_last.pt"],
            &["checkpoint.pth.tar", "model_best.pth.tar"],
            &["net-final.safetensors"],
            &["net_3.pt", "net_4.pt", "net_last.pt", "best.pt"],
            &["Model_Best.pth", "last.pth"],
        ];
        for names in whole {
            assert!(are_whole(names), "{names:?}");
        }
        let parts: [&[&str]; 14] = [
            &["model-00001-of-00002.safetensors"],
            &["pytorch_model-1-of-3.pt", "x.pt"],
            &["model.safetensors", "optimizer.pt"],
            &["step-9.pt", "step-9.optimizer.pt"],
            &["rng_state_0.pth", "rng_state_1.pth"],
            &["mp_rank_00_model_states.pt"],
            &["consolidated.00.pth"],
            &["last.pt", "model.pt", "optimizer.pt"],
            &["model_best.pt", "optimizer_best.pt"],
            &["optimizer_best.pt", "step-1.pt"],
            &["encoder_last.pt", "decoder_last.pt"],
            &["encoder_last.pt", "decoder_best.pt"],
            &["checkpoint_best.pt", "model_best.pt"],
            &["best.pt", "optimizer_best.pt"],
        ];
        for names in parts {
            assert!(!are_whole(names), "{names:?}");
        }
    }
}
