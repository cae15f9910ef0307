//! What `torch.export.save` writes (`.pt2`): a zip of a program, which is not looked into, and of what `torch.save` has
//! made of its weights.

use crate::fault::{Result, malformed};
use crate::found::Out;
use crate::source::Source;
use crate::torch;
use crate::within::Slice;
use crate::zip::{self, Directory};

/// What the member with the weights is called up to torch 2.6.
const STATE: &[u8] = b"serialized_state_dict.pt";
/// Where it is since, behind the archive's own name; one for each program.
const WEIGHTS: &[u8] = b"data/weights/";
const SAVED: &[u8] = b".pt";
/// What tells such an archive, there.
const FORMAT: &[u8] = b"archive_format";

/// The weights of a program.
pub(crate) struct Weights {
    /// Those of the first one, if they are as `torch.save` has them.
    saved: Option<Slice>,
    /// Of how many others there are some.
    others: u64,
}

/// Where the weights are, if it is such an archive.
pub(crate) fn weights(source: &dyn Source, directory: &Directory) -> Result<Option<Weights>> {
    let (mut is_one, mut found) = (false, Weights { saved: None, others: 0 });
    directory.each(source, &mut |member| {
        let behind = member.name.iter().position(|&byte| byte == b'/').map(|at| &member.name[at + 1..]);
        is_one |= behind == Some(FORMAT);
        let of_program = behind.and_then(|name| name.strip_prefix(WEIGHTS)?.strip_suffix(SAVED));
        if member.name == STATE || of_program.is_some_and(|name| !name.contains(&b'/')) {
            is_one = true;
            if found.saved.is_some() {
                found.others += 1;
            } else {
                let why = "a program of torch.export's whose weights are compressed";
                found.saved = Some(Slice::of(source, directory, &member, why)?);
            }
        }
        Ok(())
    })?;
    Ok(is_one.then_some(found))
}

/// What the checkpoint says that the weights are.
pub(crate) fn recognise(source: &dyn Source, weights: &Weights, out: &mut Out<'_, '_>) -> Result<()> {
    let Some(saved) = weights.saved else {
        return malformed("a program of torch.export's whose weights are not as torch.save has them");
    };
    saved.recognise(source, out, |inner, out| {
        let archives = zip::Directory::find(inner)?;
        match archives.last().map(|last| torch::prefix(inner, last)).transpose()?.flatten() {
            // One is written; what `torch.load` reads of several is the last one.
            Some(_) if archives.len() == 1 => torch::recognise(inner, &archives, out),
            _ => malformed("a program of torch.export's with weights that are no checkpoint"),
        }
    })?;
    if weights.others > 0 {
        let why = || format!("weights of {} more programs are not looked into", weights.others);
        out.found.reason.get_or_insert_with(why);
    }
    Ok(())
}
