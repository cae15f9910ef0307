//! Directories that are one checkpoint: what the plan in them says, or the index, and which of it is there.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::Path;

use tensorfs_formats::{Dtype, Planned};
use tensorfs_fs::Inspector;

use crate::show::failure::{self, Failure};
use crate::show::text;
use crate::tensors::place::{Kind, Place};
use crate::tensors::tiling;

/// How torch calls the plan of a distributed checkpoint, and how its parts end.
const DISTRIBUTED: &str = ".metadata";
const DISTRIBUTED_PART: &str = ".distcp";
/// How indexes of checkpoints in parts end, and the parts that they name.
const INDEXES: [(&str, &str); 2] = [(".safetensors.index.json", SAFETENSORS), (".bin.index.json", BIN)];
/// What is looked for before its like in another format, as one file and in parts, and that.
const WHOLE: &str = "model.safetensors";
const SAFETENSORS: &str = ".safetensors";
const BIN: &str = ".bin";

/// What a plan says.
pub struct Plan {
    dir: Place,
    is_distributed: bool,
    /// True if none of its parts is there, and those of another format are looked for before.
    is_unused: bool,
    tensors: Vec<Whole>,
    objects: usize,
    parts: Vec<Part>,
    extra: Vec<String>,
}

/// A file that a plan names.
pub struct Part {
    /// Its name in the directory.
    pub(super) name: String,
    /// Where it is, and how long, if it is there.
    pub(super) there: Option<(Place, u64)>,
    /// How long it is at least, as the plan says.
    pub(super) needed: u64,
    /// True if a link is there, which is not followed: on a mount the server follows none, either.
    is_link: bool,
}

/// A tensor of a plan.
pub struct Whole {
    /// Its name, as the program has it.
    pub name: Vec<u8>,
    /// The type of its elements, if the plan says one that is known.
    pub dtype: Option<Dtype>,
    /// Its dimensions. An index says none.
    pub shape: Option<Vec<u64>>,
    /// What it consists of.
    pub shards: Vec<Shard>,
}

/// A part of a tensor.
pub struct Shard {
    /// Its first element, in each dimension.
    pub offsets: Vec<u64>,
    /// Elements in each dimension.
    pub sizes: Vec<u64>,
    /// Where it is, if the plan says so.
    pub at: Option<Bytes>,
}

/// Bytes of a part.
#[derive(Clone, Copy)]
pub struct Bytes {
    /// Which part of the plan.
    pub part: usize,
    /// The first byte.
    pub offset: u64,
    /// How many. 0 if only the file is known.
    pub len: u64,
}

impl Plan {
    /// The plans in a directory, of which the contents are given.
    pub fn all_in(dir: &Place, inside: &[Place], inspector: &Inspector) -> Result<Vec<Plan>, Failure> {
        let plans = inside.iter().filter_map(|place| {
            let name = name_of(place);
            let index = INDEXES.iter().find(|(end, _)| name.ends_with(end)).map(|(_, part)| *part);
            (name == DISTRIBUTED).then_some(DISTRIBUTED_PART).or(index).map(|part| (place, part))
        });
        let mut found = Vec::new();
        for (place, part) in plans {
            let read = || match place.about(false)?.kind() {
                Kind::File => Plan::read(dir, place, inside, part, inspector),
                _ => Ok(None),
            };
            match read() {
                // Removed since the directory was read.
                Err(_) if place.is_gone() => {}
                plan => found.extend(plan?),
            }
        }
        // Of a model that there is in two formats, one may not have been fetched.
        let has_other = found.iter().any(|plan| !plan.is_distributed && !plan.is_unused);
        if has_other || inside.iter().any(|place| name_of(place) == WHOLE) {
            found.retain(|plan| !plan.is_unused);
        }
        Ok(found)
    }

    /// Reads a plan. None if it is another file of that name.
    fn read(
        dir: &Place,
        place: &Place,
        inside: &[Place],
        part: &str,
        inspector: &Inspector,
    ) -> Result<Option<Plan>, Failure> {
        let is_distributed = part == DISTRIBUTED_PART;
        let mut reading = Reading::default();
        let found = inspector.pieces(&place.open()?, &mut |piece| {
            reading.add(piece);
            ControlFlow::Continue(())
        });
        if let Some(error) = &found.error {
            return Err(Failure::at(place.path(), failure::reason(error)));
        }
        if let Some(why) = found.reason {
            let what = if found.beyond { "not looked into" } else { "the plan of a checkpoint that cannot be read" };
            return Err(Failure::at(place.path(), format!("{what}: {why}")));
        }
        if reading.names.is_empty() {
            return Ok(None);
        }
        let mut there: HashMap<String, &Place> = inside.iter().map(|place| (name_of(place), place)).collect();
        let (mut parts, mut below) = (Vec::new(), HashMap::new());
        for (name, needed) in std::mem::take(&mut reading.parts) {
            let there = match name.rsplit_once('/') {
                None => there.remove(&name).cloned(),
                Some((dir, name)) => {
                    if !below.contains_key(dir) {
                        let places = all_below(inside, dir)?.into_iter();
                        let known: HashMap<_, _> = places.map(|place| (name_of(&place), place)).collect();
                        below.insert(dir.to_owned(), known);
                    }
                    below.get(dir).and_then(|known| known.get(name)).cloned()
                }
            };
            let mut is_link = false;
            let there = match there {
                Some(place) => {
                    let about = place.about(false)?;
                    is_link = about.kind() == Kind::Link;
                    (about.kind() == Kind::File).then(|| (place.clone(), about.size()))
                }
                None => None,
            };
            parts.push(Part { name, there, needed, is_link });
        }
        let mut extra: Vec<String> = there.into_keys().filter(|name| name.ends_with(part)).collect();
        extra.sort();
        let Reading { tensors, objects, .. } = reading;
        let is_unused = part == BIN && !parts.is_empty() && parts.iter().all(|part| part.there.is_none());
        Ok(Some(Plan { dir: dir.clone(), is_distributed, is_unused, tensors, objects, parts, extra }))
    }

    /// The directory.
    pub fn dir(&self) -> &Place {
        &self.dir
    }

    /// What it is, in print.
    pub fn summary(&self) -> String {
        let kind = if self.is_distributed { "distributed checkpoint" } else { "checkpoint in parts" };
        let tensors = text::count(self.tensors.len() as u64, "tensor", "tensors");
        let objects = match self.objects as u64 {
            0 => String::new(),
            count => format!(" and {}", text::count(count, "object", "objects")),
        };
        format!("{kind}, {tensors}{objects} in {}", text::count(self.parts.len() as u64, "part", "parts"))
    }

    /// Where those of its parts are that there are.
    pub fn places(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().filter_map(|part| part.there.as_ref()).map(|(place, _)| place.path())
    }

    /// The tensors, in the plan's order.
    pub fn tensors(&self) -> &[Whole] {
        &self.tensors
    }

    /// The files that it names.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Files that seem to be parts, and are none.
    pub fn extra(&self) -> &[String] {
        &self.extra
    }

    /// The name of the tensor's part.
    pub fn name_of_part(&self, bytes: Bytes) -> &str {
        &self.parts[bytes.part].name
    }

    /// What is missing, in words.
    pub fn faults(&self) -> Vec<String> {
        let part = |part: &Part| match &part.there {
            None if part.is_link => Some(format!("{} is a link, which is not followed", part.name)),
            None => Some(format!("{} is missing", part.name)),
            Some((_, size)) if *size < part.needed => {
                let name = &part.name;
                Some(format!("{name} is cut short: it has {size} bytes of at least {}", part.needed))
            }
            Some(_) => None,
        };
        let mut corners = tiling::CORNERS_MAX;
        let tensor = |whole: &Whole| {
            let lacks = whole.shards.iter().filter(|shard| shard.at.is_none()).count();
            let name = String::from_utf8_lossy(&whole.name).into_owned();
            match whole.shards.len() {
                _ if !whole.is_covered(&mut corners) => Some(format!("the parts of {name} do not make up the whole")),
                count if lacks > 0 => {
                    Some(format!("the plan does not say where {lacks} of {count} parts of {name} are"))
                }
                _ => None,
            }
        };
        self.parts.iter().filter_map(part).chain(self.tensors.iter().filter_map(tensor)).collect()
    }
}

impl Whole {
    /// Whether each element of the whole is in just one of the parts.
    fn is_covered(&self, corners: &mut usize) -> bool {
        let Some(shape) = &self.shape else { return true };
        let parts: Vec<tiling::Part<'_>> = self.shards.iter().map(|shard| (&*shard.offsets, &*shard.sizes)).collect();
        tiling::make_up(shape, &parts, corners)
    }
}

/// What is in a directory somewhere below one of which the contents are given. No link is followed.
fn all_below(inside: &[Place], dir: &str) -> Result<Vec<Place>, Failure> {
    let mut inside = inside.to_vec();
    for name in dir.split('/') {
        inside = match inside.iter().find(|place| name_of(place) == name) {
            Some(place) if place.about(false)?.kind() == Kind::Directory => place.inside()?,
            _ => return Ok(Vec::new()),
        };
    }
    Ok(inside)
}

/// What a file or directory is called in its directory.
pub fn name_of(place: &Place) -> String {
    place.name().to_string_lossy().into_owned()
}

/// A plan that is being read.
#[derive(Default)]
struct Reading {
    tensors: Vec<Whole>,
    /// Where tensors are in that list.
    names: HashMap<Vec<u8>, Option<usize>>,
    objects: usize,
    /// Where parts are in the list of a tensor's, by their first elements: of tensors of which that was asked.
    begins: HashMap<usize, HashMap<Vec<u64>, usize>>,
    /// Parts of the tensor that is named next.
    chunks: Vec<Shard>,
    /// Files, with their least lengths, in the order of their names, and their numbers.
    parts: Vec<(String, u64)>,
    numbers: BTreeMap<String, usize>,
}

impl Reading {
    fn add(&mut self, piece: Planned) {
        match piece {
            Planned::Chunk { offsets, sizes } => self.chunks.push(Shard { offsets, sizes, at: None }),
            Planned::Tensor { name, dtype, shape } => {
                let shards = std::mem::take(&mut self.chunks);
                self.names.insert(name.clone(), Some(self.tensors.len()));
                self.tensors.push(Whole { name, dtype, shape: Some(shape), shards });
            }
            Planned::Place { name, offsets, chunk, file, offset, len } => {
                let part = *self.numbers.entry(file).or_insert_with_key(|file| {
                    self.parts.push((file.clone(), 0));
                    self.parts.len() - 1
                });
                let needed = &mut self.parts[part].1;
                *needed = offset.saturating_add(len).max(*needed);
                self.place(name, offsets.as_deref(), chunk, Bytes { part, offset, len });
            }
            // That is a hierarchy, and none of the files that are plans here.
            Planned::Array { .. } | Planned::Database => {}
        }
    }

    fn place(&mut self, name: Vec<u8>, offsets: Option<&[u64]>, chunk: Option<u64>, at: Bytes) {
        let (of, tensor) = match self.names.get(&name) {
            Some(Some(number)) => (*number, &mut self.tensors[*number]),
            // An index has nothing but places, each of a whole tensor.
            _ if at.len == 0 => {
                self.names.insert(name.clone(), Some(self.tensors.len()));
                let shards = vec![Shard { offsets: Vec::new(), sizes: Vec::new(), at: Some(at) }];
                return self.tensors.push(Whole { name, dtype: None, shape: None, shards });
            }
            known => {
                self.objects += usize::from(known.is_none());
                self.names.insert(name, None);
                return;
            }
        };
        let count = tensor.shards.len();
        let by_number = chunk.and_then(|chunk| usize::try_from(chunk).ok()).filter(|chunk| *chunk < count);
        let begins = |shard: &Shard| offsets.is_none_or(|offsets| offsets == shard.offsets);
        let by_number = by_number.filter(|number| begins(&tensor.shards[*number]));
        let found = match (by_number, offsets) {
            (Some(number), _) => Some(number),
            (None, Some(offsets)) => {
                let known = self.begins.entry(of).or_insert_with(|| {
                    // Of two that begin there the first one counts.
                    let shards = tensor.shards.iter().enumerate().rev();
                    shards.map(|(number, shard)| (shard.offsets.clone(), number)).collect()
                });
                known.get(offsets).copied()
            }
            (None, None) => (count == 1).then_some(0),
        };
        if let Some(found) = found {
            tensor.shards[found].at = Some(at);
        }
    }
}
