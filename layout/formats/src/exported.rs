//! What `torch.export.save` writes (`.pt2`): a zip of a program, which is not looked into, and of its weights. Those
//! are what `torch.save` has made of them, or, since torch 2.8, a member for each storage, and JSON that says which
//! views of which storage they are.

mod weights;

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
/// How the JSON ends that says which they are, where storages are members; one for each program.
const CONFIG: &[u8] = b"_weights_config.json";
/// What tells such an archive, there.
const FORMAT: &[u8] = b"archive_format";

/// The weights of a program.
pub(crate) struct Weights {
    /// Those of the first one, if they are as `torch.save` has them.
    saved: Option<Slice>,
    /// What says which they are, if storages are members, and the directory of the archive that it is in.
    config: Option<(Slice, Vec<u8>)>,
    /// Of how many others there are some.
    others: u64,
}

/// Where the weights are, if it is such an archive.
pub(crate) fn weights(source: &dyn Source, directory: &Directory) -> Result<Option<Weights>> {
    let (mut is_one, mut found) = (false, Weights { saved: None, config: None, others: 0 });
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
        if let Some(name) = behind.and_then(|name| name.strip_prefix(WEIGHTS)?.strip_suffix(CONFIG))
            && !name.contains(&b'/')
        {
            if found.config.is_some() {
                found.others += 1;
            } else {
                let root = &member.name[..=member.name.iter().position(|&byte| byte == b'/').unwrap_or(0)];
                let why = "a program of torch.export's whose weights are compressed";
                found.config = Some((Slice::of(source, directory, &member, why)?, root.to_vec()));
            }
        }
        Ok(())
    })?;
    // Any zip may have JSON of that name in it.
    Ok(is_one.then_some(found))
}

/// What the checkpoint says that the weights are.
pub(crate) fn recognise(
    source: &dyn Source,
    directory: &Directory,
    weights: &Weights,
    out: &mut Out<'_, '_>,
) -> Result<()> {
    // As torch does: what it wrote before goes first.
    if let (None, Some((config, root))) = (weights.saved, &weights.config) {
        weights::recognise(source, (directory, root), *config, out)?;
        weights.tell_of_others(out);
        return Ok(());
    }
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
    weights.tell_of_others(out);
    Ok(())
}

impl Weights {
    fn tell_of_others(&self, out: &mut Out<'_, '_>) {
        if self.others > 0 {
            let why = || format!("weights of {} more programs are not looked into", self.others);
            out.found.reason.get_or_insert_with(why);
        }
    }
}
