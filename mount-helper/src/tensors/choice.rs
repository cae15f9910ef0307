//! The one tensor of a file that a person means.

use std::cmp::Ordering;
use std::path::Path;

use tensorfs_fs::Inspector;

use crate::show::failure::Failure;
use crate::show::text;
use crate::tensors::account::Allowance;
use crate::tensors::listed::Listed;
use crate::tensors::place::Place;
use crate::tensors::tensor_file::TensorFile;

/// Opens a file and finds the tensor that a person means by `NAME`, `NAME@STEP` or `NAME@last`.
pub fn one(path: &Path, wanted: &str) -> Result<(TensorFile, Listed), Failure> {
    let opened = TensorFile::open(&Place::of(path)?, &Inspector::default(), Some(wanted), &Allowance::default())?;
    let at_step = wanted.rsplit_once('@').and_then(|(name, step)| match step {
        "last" => Some((name, None)),
        step => Some((name, Some(step.parse::<i64>().ok()?))),
    });
    // A name may have an @ in it: the whole of it goes first.
    let mut whole = Candidates::default();
    let mut stepped = Candidates::default();
    opened.tensors(&mut |listed| {
        let name = listed.tensor.name_text();
        if name == wanted {
            whole.add(listed, false);
        } else if let Some((wanted, step)) = at_step
            && name == wanted
            && (step.is_none() || step == listed.tensor.step)
        {
            stepped.add(listed, step.is_none());
        }
    })?;
    let candidates = if whole.count > 0 { whole } else { stepped };
    match (candidates.last, candidates.count) {
        (None, _) => Err(Failure::at(
            path,
            match opened.trouble() {
                None => format!("no tensor {wanted:?}; `tensorfs tensors` lists what there is"),
                Some(trouble) => format!("no tensor {wanted:?}; {trouble}"),
            },
        )),
        (Some(listed), 1) => match opened.why_missing(&listed) {
            Some(why) => Err(Failure::at(path, format!("{}: {why}", text::plain(&listed.tensor.name_text())))),
            None => Ok((opened, listed)),
        },
        (Some(Listed { tensor, .. }), count) => {
            let name = text::plain(&tensor.name_text());
            let hint = match candidates.steps {
                Some((first, last)) if first != last => {
                    format!("at steps {first} to {last}; say {name}@STEP or {name}@last")
                }
                _ => "with nothing that tells them apart".to_owned(),
            };
            Err(Failure::at(path, format!("{count} tensors are called {name}, {hint}")))
        }
    }
}

/// Tensors of one name: how many, at which steps, and the last one.
#[derive(Default)]
struct Candidates {
    last: Option<Listed>,
    count: u64,
    steps: Option<(i64, i64)>,
}

impl Candidates {
    /// With `newest`, only those of the highest step count.
    fn add(&mut self, listed: Listed, newest: bool) {
        let tensor = &listed.tensor;
        if newest && let Some(last) = &self.last {
            match tensor.step.cmp(&last.tensor.step) {
                Ordering::Less => return,
                Ordering::Equal => {}
                Ordering::Greater => *self = Candidates::default(),
            }
        }
        if let Some(step) = tensor.step {
            let (first, last) = self.steps.unwrap_or((step, step));
            self.steps = Some((first.min(step), last.max(step)));
        }
        self.count += 1;
        self.last = Some(listed);
    }
}
