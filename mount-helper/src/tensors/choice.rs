//! The one tensor of a file that a person means.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::path::Path;

use tensorfs_formats::Tensor;
use tensorfs_fs::Inspector;

use crate::show::failure::Failure;
use crate::show::text;
use crate::tensors::place::Place;
use crate::tensors::tensor_file::TensorFile;

/// Opens a file and finds the tensor that a person means by `NAME`, `NAME@STEP` or `NAME@last`.
pub fn one(path: &Path, wanted: &str) -> Result<(TensorFile, Tensor), Failure> {
    let opened = TensorFile::open(&Place::of(path)?, &Inspector::default())?;
    let at_step = wanted.rsplit_once('@').and_then(|(name, step)| match step {
        "last" => Some((name, None)),
        step => Some((name, Some(step.parse::<i64>().ok()?))),
    });
    // A name may have an @ in it: the whole of it goes first.
    let mut whole = Candidates::default();
    let mut stepped = Candidates::default();
    let found = opened.tensors(&mut |tensor, _| {
        let name = tensor.name_text();
        if name == wanted {
            whole.add(tensor, false);
        } else if let Some((wanted, step)) = at_step
            && name == wanted
            && (step.is_none() || step == tensor.step)
        {
            stepped.add(tensor, step.is_none());
        }
        ControlFlow::Continue(())
    });
    if let Some(failure) = found.failure(path) {
        return Err(failure);
    }
    let candidates = if whole.count > 0 { whole } else { stepped };
    match (candidates.last, candidates.count) {
        (None, _) => Err(Failure::at(path, format!("no tensor {:?}; `tensorfs tensors` lists what there is", wanted))),
        (Some(tensor), 1) => Ok((opened, tensor)),
        (Some(tensor), count) => {
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
    last: Option<Tensor>,
    count: u64,
    steps: Option<(i64, i64)>,
}

impl Candidates {
    /// With `newest`, only those of the highest step count.
    fn add(&mut self, tensor: Tensor, newest: bool) {
        if newest && let Some(last) = &self.last {
            match tensor.step.cmp(&last.step) {
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
        self.last = Some(tensor);
    }
}
