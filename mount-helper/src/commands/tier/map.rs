//! `tensorfs tier map`: the placement map, shown or replaced.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use tensorfs_fs::check_placement;
use tensorfs_layout::check::Contents;
use tensorfs_layout::log::{PLACEMENT_MAX, REMOTE_NAME};
use tensorfs_layout::pool::holder;

use crate::ask::about;
use crate::cli::TierMap;
use crate::mounting::target::Target;
use crate::mounting::{paths, pool};
use crate::show::failure::{At, Failure, reason};
use crate::show::output;

/// Where a mounted pool shows its placement map.
const MAP: &str = ".tensorfs/placement";

/// Runs the command.
pub fn run(arguments: &TierMap) -> Result<(), Failure> {
    let target = Target::of(&arguments.target)?;
    let is_mounted = match &target {
        Target::Mount(_) => true,
        Target::Pool(pool) => holder(pool)?.is_some(),
    };
    let mount = is_mounted.then(|| target.whole()).transpose()?.map(|mount| mount.mount_point().to_owned());
    let Some(file) = &arguments.file else {
        let text = match &mount {
            Some(mount) => fs::read_to_string(mount.join(MAP)).at(&mount.join(MAP))?,
            None => Contents::read(&paths::real(&arguments.target)?)?.view().placement().to_owned(),
        };
        return output::print(&text);
    };
    let text = read(file)?;
    match &mount {
        Some(mount) => replace_on_mount(mount, &text),
        None => pool::with_unmounted(&arguments.target, |pool| {
            let mut tiers: Vec<String> = pool.view().tiers().map(|(_, tier)| tier.name.to_string()).collect();
            tiers.extend(pool.has_second_copy().then(|| REMOTE_NAME.to_owned()));
            check_placement(&text, &tiers).map_err(|why| Failure::at(file, why))?;
            Ok(pool.set_placement(&text)?)
        }),
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    let limit = PLACEMENT_MAX as u64 + 1;
    let mut text = String::new();
    let read = match file.as_os_str() == "-" {
        true => io::stdin().take(limit).read_to_string(&mut text),
        false => fs::File::open(file).and_then(|file| file.take(limit).read_to_string(&mut text)),
    };
    read.at(file)?;
    Ok(text)
}

fn replace_on_mount(mount: &Path, text: &str) -> Result<(), Failure> {
    let path = mount.join(MAP);
    // Said here which line is wrong: the server says no more than that one is.
    let tiers: serde_json::Value =
        serde_json::from_str(&about::json(mount)?.json).map_err(|error| Failure::at(mount, error))?;
    let names: Vec<String> = tiers["tiers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tier| tier["name"].as_str().map(str::to_owned))
        // Whether there is one that no file has left for yet, the server knows.
        .chain([REMOTE_NAME.to_owned()])
        .collect();
    check_placement(text, &names).map_err(|why| Failure::at(mount, why))?;
    let mut file = fs::File::options().write(true).truncate(true).open(&path).at(&path)?;
    file.write_all(text.as_bytes()).at(&path)?;
    match file.sync_all() {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(Failure::at(&path, "the server refuses the map; its log says which line is wrong"))
        }
        Err(error) => Err(Failure::at(&path, reason(&error))),
        Ok(()) => Ok(()),
    }
}
