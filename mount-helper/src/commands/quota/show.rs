//! `tensorfs quota show`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::show::failure::Failure;
use crate::show::{output, size, table, text};

use super::hosts::{Has, Host};
use super::place::Place;
use super::walk::Found;

/// A directory with a quota, on one of the filesystems that it holds on.
struct Row<'a> {
    directory: PathBuf,
    number: u32,
    host: &'a Host,
    has: Has,
}

/// Runs the command: of a mount, all quotas; of a directory below, the one that what is made in it counts for.
pub fn run(path: &Path, json: bool) -> Result<(), Failure> {
    let place = Place::of(path)?;
    let found = if place.directory.path() == place.root { all(&place)? } else { nearest(&place)? };
    let mut rows = Vec::new();
    for (directory, number) in found {
        for host in place.hosts.iter() {
            rows.push(Row { directory: directory.clone(), number, host, has: host.get(number)? });
        }
    }
    if json {
        let rows: Value = rows.iter().map(json_of).collect();
        return output::print(&format!("{rows:#}\n"));
    }
    output::print(&text_of(&rows))
}

/// The directories of a mount that have quotas of their own, with their projects.
fn all(place: &Place) -> Result<Vec<(PathBuf, u32)>, Failure> {
    let own = place.directory.project()?;
    let mut found: Vec<(PathBuf, u32)> = Vec::new();
    if own != 0 {
        found.push((place.root.clone(), own));
    }
    let mut failed = None;
    let mut look = |at: &Found| {
        let number = if at.is_dir() { at.project()? } else { 0 };
        // Those around it come before it: what it counts for there is the last of them that it is below.
        let around =
            found.iter().rev().find(|(above, _)| at.path().starts_with(above)).map_or(0, |(_, number)| *number);
        if number != 0 && number != around {
            found.push((at.path().to_owned(), number));
        }
        Ok(at.is_dir())
    };
    place.directory.below(&place.root, &mut look, &mut |failure| failed = Some(failure));
    failed.map_or(Ok(found), Err)
}

/// The highest directory from which on a project reaches down to this one.
fn nearest(place: &Place) -> Result<Vec<(PathBuf, u32)>, Failure> {
    let number = place.directory.project()?;
    if number == 0 {
        return Ok(Vec::new());
    }
    let mut highest = place.directory.path();
    while let Some(above) = highest.parent().filter(|above| above.starts_with(&place.root)) {
        match Found::at(above)? {
            Some(found) if found.project()? == number => highest = above,
            _ => break,
        }
    }
    Ok(vec![(highest.to_owned(), number)])
}

fn json_of(row: &Row<'_>) -> Value {
    let Row { directory, number, host, has } = row;
    let line = json!({ "project": number, "used": has.used, "limit": has.limit(), "host": host.directory() });
    text::with_path(line, directory)
}

fn text_of(rows: &[Row<'_>]) -> String {
    let titles = ["USED", "LIMIT", "PROJECT", "ON"].map(str::to_owned);
    let mut lines = vec![(titles.to_vec(), "DIRECTORY".to_owned())];
    let shown = |path: &Path| text::plain(&path.display().to_string());
    for Row { directory, number, host, has } in rows {
        let limit = has.limit().map_or("not set".to_owned(), size::humane);
        let cells = vec![size::humane(has.used), limit, number.to_string(), shown(host.directory())];
        lines.push((cells, shown(directory)));
    }
    let widths = table::widths(lines.iter().map(|(cells, _)| cells.as_slice()), titles.len());
    lines.iter().map(|(cells, last)| table::line(cells, &widths, last)).collect()
}
