//! The tensors of a directory: those of the checkpoints in it, each with its parts, and those of other files.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tensorfs_formats::{Array, Dtype, Location, Order, Tensor};
use tensorfs_fs::{Inspector, TensorBytes};

use crate::show::failure::Failure;
use crate::tensors::account::Account;
use crate::tensors::assembled::{Assembled, Part, by_rows};
use crate::tensors::chunks::Chunks;
use crate::tensors::grid::{Grid, How, why_not};
use crate::tensors::hierarchy::{Hierarchies, Seen, Stored};
use crate::tensors::listed::{Bytes, Listed, Thing};
use crate::tensors::place::{Entered, Kind, Place};
use crate::tensors::plan::{Plan, Whole, name_of};
use crate::tensors::single::Single;

/// Where a part of a tensor is: its first element and its elements in each dimension, the name of the file, and its
/// first byte there.
pub type At<'a> = (&'a [u64], &'a [u64], String, u64);

/// A directory and the tensors in it.
pub struct Model {
    inspector: Inspector,
    files: Vec<Place>,
    tensors: Vec<Known>,
    faults: Vec<String>,
    trouble: Option<Failure>,
    /// Which files are the first ones of plans.
    plans: BTreeSet<usize>,
    /// What may be called so is wanted, or all.
    wanted: Option<String>,
}

/// A tensor, and what it is read from.
struct Known {
    listed: Listed,
    from: From,
}

enum From {
    /// A tensor of a file.
    File(usize),
    /// Its parts.
    Shards(Vec<Piece>),
    /// Its chunks, and why they are not read, if they are not.
    Chunks(Rc<Array>, Rc<Chunks>, Option<String>),
    /// A part is not there, or is another: why.
    Nothing(String),
}

/// A part of a tensor: where it begins, and the tensor of a file that it is.
struct Piece {
    offsets: Vec<u64>,
    file: usize,
    tensor: Rc<Tensor>,
}

/// What was gone through of a directory.
struct Walked {
    top: PathBuf,
    directories: Entered,
    /// Files that are parts of a checkpoint.
    parts: HashSet<PathBuf>,
    hierarchies: Hierarchies,
}

impl Model {
    /// All tensors below a directory. Those of a checkpoint have the names that the program gave them; those of other
    /// files stand behind the file's name, and what is in directories behind theirs. What cannot be read is told, and
    /// the rest is there. If one is `wanted`, no other files and directories are looked into than its name leads to.
    pub fn of(dir: &Place, inspector: &Inspector, wanted: Option<&str>) -> Result<Model, Failure> {
        let mut model = Model { wanted: wanted.map(str::to_owned), ..Model::empty(inspector) };
        let hierarchies = Hierarchies::to_read(inspector);
        let mut walked =
            Walked { top: dir.path().to_owned(), directories: Entered::default(), parts: HashSet::new(), hierarchies };
        walked.directories.enter(dir, &dir.about(true)?)?;
        model.add_directory((dir, dir.inside()?), "", &mut walked);
        let left = walked.hierarchies.end();
        model.add_arrays(left, &walked.top);
        Ok(model)
    }

    /// The tensors of one checkpoint.
    pub fn of_plan(plan: &Plan, inspector: &Inspector) -> Model {
        let mut model = Model::empty(inspector);
        model.add_plan(plan, "");
        model
    }

    fn empty(inspector: &Inspector) -> Model {
        let (files, tensors, faults) = (Vec::new(), Vec::new(), Vec::new());
        Model {
            inspector: inspector.clone(),
            files,
            tensors,
            faults,
            trouble: None,
            plans: BTreeSet::new(),
            wanted: None,
        }
    }

    /// The tensors, and checksums of their bytes as far as there are any.
    pub fn tensors(&self) -> impl Iterator<Item = &Listed> {
        self.tensors.iter().map(|known| &known.listed)
    }

    /// What is not there, or cannot be read, in words.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Why there may be tensors that are not among these: the first reason.
    pub fn trouble(&self) -> Option<&Failure> {
        self.trouble.as_ref()
    }

    /// Where the parts of a tensor are, if it has some that are all there.
    pub fn shards(&self, listed: &Listed) -> Option<Vec<At<'_>>> {
        let From::Shards(pieces) = &self.tensors.get(listed.number())?.from else { return None };
        let mut shards = Vec::new();
        for Piece { offsets, file, tensor } in pieces {
            shards.push((offsets.as_slice(), tensor.shape.as_slice(), name_of(&self.files[*file]), tensor.range().0));
        }
        Some(shards)
    }

    /// Why a tensor cannot be read, if a part of it is not there.
    pub fn why_missing(&self, listed: &Listed) -> Option<&str> {
        match &self.tensors.get(listed.number())?.from {
            From::Nothing(why) | From::Chunks(_, _, Some(why)) => Some(why),
            _ => None,
        }
    }

    /// True if a tensor is among what is told to be not there.
    pub fn is_missing(&self, listed: &Listed) -> bool {
        self.tensors.get(listed.number()).is_some_and(|known| matches!(known.from, From::Nothing(_)))
    }

    /// The chunks of a tensor that is not read from them, and what its metadata says.
    pub fn chunks(&self, listed: &Listed) -> Option<(&Array, &Chunks)> {
        match &self.tensors.get(listed.number())?.from {
            From::Chunks(array, chunks, _) => Some((array, chunks)),
            _ => None,
        }
    }

    /// A tensor, to be read.
    pub fn bytes(&self, listed: &Listed, account: &Rc<Account>) -> io::Result<Bytes> {
        let missing = |why: &str| io::Error::new(io::ErrorKind::NotFound, why.to_owned());
        let known = self.tensors.get(listed.number()).ok_or_else(|| missing("no such tensor"))?;
        let pieces = match &known.from {
            From::File(file) => return self.open(*file, &listed.tensor).map(Bytes::One),
            From::Nothing(why) => return Err(missing(why)),
            From::Chunks(array, chunks, why) => {
                let is_across = array.column_major && listed.tensor.order != Order::ColumnMajor;
                let how = How { is_across, account: account.clone() };
                let grid = Grid::new(array.clone(), chunks.clone(), self.inspector.clone(), how);
                let grid = grid.filter(|_| why.is_none());
                let refused = || why.clone().unwrap_or_else(|| "its elements are not stored as plain bytes".to_owned());
                return grid.map(Bytes::Chunks).ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, refused()));
            }
            From::Shards(pieces) => pieces,
        };
        let part = |piece: &Piece| {
            let (place, inspector, tensor) =
                (self.files[piece.file].clone(), self.inspector.clone(), piece.tensor.clone());
            let open = Box::new(move || open(&place, &inspector, &tensor));
            Part { offsets: piece.offsets.clone(), sizes: piece.tensor.shape.clone(), open, bytes: None }
        };
        let tensor = &listed.tensor;
        let parts = pieces.iter().map(part).collect();
        Ok(Bytes::Many(Assembled::new(tensor.shape.clone(), tensor.item_size, parts, account.clone())))
    }

    /// What a tensor has in common with others, so that what it takes counts for all of them: a plan, or nothing.
    pub fn thing(&self, listed: &Listed) -> Thing {
        match self.tensors.get(listed.number()).map(|known| &known.from) {
            Some(From::Shards(pieces)) => {
                let first = pieces.iter().map(|piece| piece.file).min().unwrap_or(0);
                Thing::Plan(*self.plans.range(..=first).next_back().unwrap_or(&0))
            }
            Some(From::Chunks(..)) => Thing::Array(listed.number()),
            _ => Thing::File,
        }
    }

    /// Where a tensor of a file is that it is not read from: the file.
    pub fn place_of(&self, listed: &Listed) -> Option<&Place> {
        match self.tensors.get(listed.number())?.from {
            From::File(file) => self.files.get(file),
            _ => None,
        }
    }

    fn open(&self, file: usize, tensor: &Tensor) -> io::Result<TensorBytes> {
        open(&self.files[file], &self.inspector, tensor)
    }

    fn add(&mut self, tensor: Tensor, checksums: Vec<(u64, u32)>, from: From) {
        let listed = Listed::new(tensor, checksums, self.tensors.len());
        self.tensors.push(Known { listed, from });
    }

    /// True if the tensor that is wanted may be in what has this name, or is that.
    fn leads_on(&self, name: &str) -> bool {
        let is_it =
            |wanted: &str| wanted.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        // It may be wanted at a step, and may have that in its name.
        self.wanted.as_ref().is_none_or(|all| is_it(all) || all.rsplit_once('@').is_some_and(|(name, _)| is_it(name)))
    }

    /// Notes what cannot be looked at. What was removed meanwhile is no trouble.
    fn note(&mut self, place: &Place, failure: Failure) {
        if !place.is_gone() {
            self.faults.push(failure.to_string());
            self.trouble.get_or_insert(failure);
        }
    }

    /// Adds what is in a directory, but for parts of a checkpoint, which are collected.
    fn add_directory(&mut self, (dir, mut inside): (&Place, Vec<Place>), prefix: &str, seen: &mut Walked) {
        let arrays = seen.hierarchies.enter(dir, &mut inside);
        self.add_arrays(arrays, &seen.top);
        let plans = Plan::all_in(dir, &inside, &self.inspector).unwrap_or_else(|failure| {
            self.note(dir, failure);
            Vec::new()
        });
        for (number, plan) in plans.iter().enumerate() {
            // Two checkpoints in one directory have mostly the same names.
            let prefix = if number == 0 { prefix.to_owned() } else { format!("{prefix}{}/", number + 1) };
            self.add_plan(plan, &prefix);
            seen.parts.extend(plan.places().map(Path::to_owned));
        }
        for place in inside {
            let name = format!("{prefix}{}", name_of(&place));
            if self.leads_on(&name) && !seen.parts.contains(place.path()) {
                let added = self.add_place(&place, &format!("{name}/"), seen);
                added.unwrap_or_else(|failure| self.note(&place, failure));
            }
        }
    }

    fn add_place(&mut self, place: &Place, prefix: &str, seen: &mut Walked) -> Result<(), Failure> {
        let about = place.about(false)?;
        match about.kind() {
            Kind::Directory => {
                seen.directories.enter(place, &about)?;
                self.add_directory((place, place.inside()?), prefix, seen);
                Ok(())
            }
            Kind::File => self.add_file(place, prefix),
            Kind::Link | Kind::Other => Ok(()),
        }
    }

    /// Adds arrays, which have the names of the directories from the top on.
    fn add_arrays(&mut self, seen: Vec<Seen>, top: &Path) {
        for one in seen {
            match one {
                Seen::Trouble(failure) => {
                    self.faults.push(failure.to_string());
                    self.trouble.get_or_insert(failure);
                }
                Seen::Array(stored, _) => self.add_array(*stored, top),
                Seen::Odd(_) | Seen::End(_) => {}
            }
        }
    }

    fn add_array(&mut self, stored: Stored, top: &Path) {
        let name = stored.name_from(top);
        if !self.leads_on(&name) {
            return;
        }
        let Stored { array, chunks, fault, .. } = stored;
        if let Some(fault) = fault {
            self.faults.push(format!("{name}: {fault}"));
            return self.add(array.tensor(name.into_bytes()), Vec::new(), From::Nothing(fault));
        }
        let why = why_not(&array, chunks.as_ref());
        let mut tensor = array.tensor(name.into_bytes());
        if let (None, Some(len)) = (&why, array.bytes()) {
            tensor.location = Location::Raw { offset: 0, len };
        }
        let from = From::Chunks(Rc::new(array), Rc::new(chunks.unwrap_or_default()), why);
        self.add(tensor, Vec::new(), from);
    }

    fn add_file(&mut self, place: &Place, prefix: &str) -> Result<(), Failure> {
        let number = self.files.len();
        let before = self.tensors.len();
        let found = Single::open(place, &self.inspector)?.tensors(&mut |mut tensor, checksums| {
            tensor.name = [prefix.as_bytes(), &tensor.name].concat();
            self.add(tensor, checksums, From::File(number));
            ControlFlow::Continue(())
        });
        if self.tensors.len() > before {
            self.files.push(place.clone());
        }
        match found.failure(place.path()) {
            Some(failure) if found.is_cut_short() => Err(failure),
            _ => Ok(()),
        }
    }

    fn add_plan(&mut self, plan: &Plan, prefix: &str) {
        self.faults.extend(plan.faults());
        let first = self.files.len();
        self.plans.insert(first);
        let mut parts = Vec::new();
        for part in plan.parts() {
            let mut found = InPart::default();
            if let Some((place, _)) = &part.there {
                found.look(place, &self.inspector);
                self.files.push(place.clone());
            } else {
                // The numbers of files are those of parts.
                self.files.push(plan.dir().clone());
            }
            parts.push(found);
        }
        for whole in plan.tensors() {
            let name = [prefix.as_bytes(), &whole.name].concat();
            let made = Made::of(plan, whole, &parts, first);
            let shape = whole.shape.clone().or(made.shape).unwrap_or_default();
            let dtype = whole.dtype.or(made.dtype).unwrap_or(Dtype::Other);
            let len = shape.iter().fold(dtype.size().unwrap_or(0), |len, size| len.saturating_mul(*size));
            // Elements of less than a byte cannot be put together from parts.
            let location = match dtype.size() {
                Some(_) => Location::Raw { offset: 0, len },
                None => Location::Encoded { offset: 0, len: 0 },
            };
            let mut tensor = Tensor::new(name, dtype, shape, location);
            tensor.big_endian = made.big_endian;
            if let From::Nothing(why) = &made.from {
                self.faults.push(format!("{}: {why}", tensor.name_text()));
            }
            self.add(tensor, made.checksums, made.from);
        }
    }
}

fn open(place: &Place, inspector: &Inspector, tensor: &Tensor) -> io::Result<TensorBytes> {
    let file = place.open().map_err(|failure| io::Error::other(failure.to_string()))?;
    inspector.bytes(&file.into(), tensor)
}

/// A tensor of a file, with the checksums of its bytes.
type InFile = (Rc<Tensor>, Vec<(u64, u32)>);

/// The tensors of a part, by where they begin and by their names.
#[derive(Default)]
struct InPart {
    by_offset: BTreeMap<u64, Vec<InFile>>,
    by_name: BTreeMap<Vec<u8>, InFile>,
    /// Why there are none.
    why: Option<String>,
}

impl InPart {
    fn look(&mut self, place: &Place, inspector: &Inspector) {
        let opened = match Single::open(place, inspector) {
            Ok(opened) => opened,
            Err(failure) => return self.why = Some(failure.to_string()),
        };
        let found = opened.tensors(&mut |tensor, checksums| {
            let (offset, _) = tensor.range();
            let one = (Rc::new(tensor), checksums);
            self.by_name.insert(one.0.name.clone(), one.clone());
            self.by_offset.entry(offset).or_default().push(one);
            ControlFlow::Continue(())
        });
        self.why = found.failure(place.path()).map(|failure| failure.to_string());
    }
}

/// A tensor that was put together from what its parts are.
struct Made {
    from: From,
    shape: Option<Vec<u64>>,
    dtype: Option<Dtype>,
    big_endian: bool,
    checksums: Vec<(u64, u32)>,
}

impl Made {
    fn of(plan: &Plan, whole: &Whole, parts: &[InPart], first: usize) -> Made {
        let mut made =
            Made { from: From::Shards(Vec::new()), shape: None, dtype: None, big_endian: false, checksums: Vec::new() };
        match made.put_together(plan, whole, parts, first) {
            Ok(pieces) => made.from = From::Shards(pieces),
            Err(why) => made.from = From::Nothing(why),
        }
        made
    }

    fn put_together(
        &mut self,
        plan: &Plan,
        whole: &Whole,
        parts: &[InPart],
        first: usize,
    ) -> Result<Vec<Piece>, String> {
        let mut pieces = Vec::new();
        for shard in &whole.shards {
            let Some(at) = shard.at else { return Err("the plan does not say where a part of it is".to_owned()) };
            let (name, part) = (plan.name_of_part(at), &parts[at.part]);
            let found = match at.len {
                0 => part.by_name.get(&whole.name),
                len => {
                    let mut within = part.by_offset.range(at.offset..at.offset.saturating_add(len));
                    let one = within.next().and_then(|(_, all)| if let [one] = &all[..] { Some(one) } else { None });
                    one.filter(|_| within.next().is_none())
                }
            };
            let Some((tensor, checksums)) = found else {
                let why = part.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                return Err(format!("its part in {name} is not there{why}"));
            };
            let fits = whole.shape.is_none() || tensor.shape == shard.sizes;
            let dtype = self.dtype.or(whole.dtype).unwrap_or(tensor.dtype);
            if !fits || tensor.dtype != dtype || !pieces.is_empty() && tensor.big_endian != self.big_endian {
                return Err(format!("its part in {name} is of another shape or type than the plan says"));
            }
            (self.dtype, self.big_endian) = (Some(dtype), tensor.big_endian);
            let offsets = if whole.shape.is_none() { vec![0; tensor.shape.len()] } else { shard.offsets.clone() };
            if whole.shape.is_none() {
                self.shape = Some(tensor.shape.clone());
            }
            if whole.shards.len() == 1 && matches!(tensor.location, Location::Raw { .. }) {
                self.checksums = checksums.clone();
            }
            let Some(tensor) = by_rows(tensor) else {
                return Err(format!("its part in {name} is stored column by column, and compressed"));
            };
            pieces.push(Piece { offsets, file: first + at.part, tensor: Rc::new(tensor) });
        }
        Ok(pieces)
    }
}
