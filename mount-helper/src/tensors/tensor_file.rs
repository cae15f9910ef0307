//! The tensors of a file, or of a directory that is taken as one thing.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use tensorfs_formats::{Array, Location, Tensor};
use tensorfs_fs::Inspector;

use crate::show::failure::Failure;
use crate::tensors::account::{Account, Allowance};
use crate::tensors::chunks::Chunks;
use crate::tensors::listed::{Bytes, Listed, Thing};
use crate::tensors::model::Model;
use crate::tensors::place::{Kind, Place};
use crate::tensors::single::Single;

/// A file or a directory, and what is known of its tensors.
pub struct TensorFile {
    path: PathBuf,
    held: Held,
    accounts: RefCell<Accounts>,
}

/// What things have taken: those that have a number, and files.
#[derive(Default)]
struct Accounts {
    beyond: Allowance,
    of: HashMap<Thing, Rc<Account>>,
    of_files: HashMap<(u64, u64), Rc<Account>>,
}

impl Accounts {
    fn of_file(&mut self, file: &File) -> io::Result<Rc<Account>> {
        let about = file.metadata()?;
        let known = self.of_files.entry((about.dev(), about.ino()));
        let account = known.or_insert_with(|| Rc::new(self.beyond.account())).clone();
        account.count(file)?;
        Ok(account)
    }

    fn of_thing(&mut self, thing: Thing) -> Rc<Account> {
        self.of.entry(thing).or_insert_with(|| Rc::new(self.beyond.account())).clone()
    }
}

enum Held {
    File(Single),
    Directory(Model),
}

impl TensorFile {
    /// Opens it to read it, as one of those that have something `beyond` together. Of a directory what may be called as
    /// one is `wanted`, or all.
    pub fn open(
        place: &Place,
        inspector: &Inspector,
        wanted: Option<&str>,
        beyond: &Allowance,
    ) -> Result<TensorFile, Failure> {
        let held = match place.about(true)?.kind() {
            Kind::Directory => Held::Directory(Model::of(place, inspector, wanted)?),
            _ => Held::File(Single::open(place, inspector)?),
        };
        let accounts = RefCell::new(Accounts { beyond: beyond.clone(), ..Accounts::default() });
        Ok(TensorFile { path: place.path().to_owned(), held, accounts })
    }

    /// As it is called in print.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives each tensor to `sink`, in its own order.
    ///
    /// # Errors
    /// What was not readable, or that there are none in a file.
    pub fn tensors(&self, sink: &mut dyn FnMut(Listed)) -> Result<(), Failure> {
        match &self.held {
            Held::File(file) => {
                let mut number = 0;
                let found = file.tensors(&mut |tensor, checksums| {
                    sink(Listed::new(tensor, checksums, number));
                    number += 1;
                    ControlFlow::Continue(())
                });
                found.failure(&self.path).map_or(Ok(()), Err)
            }
            Held::Directory(model) => {
                model.tensors().for_each(|listed| sink(listed.clone()));
                Ok(())
            }
        }
    }

    /// What of a directory is not there, or cannot be read, in words.
    pub fn faults(&self) -> &[String] {
        match &self.held {
            Held::File(_) => &[],
            Held::Directory(model) => model.faults(),
        }
    }

    /// Why what is in a directory may not be all that there is: the first reason.
    pub fn trouble(&self) -> Option<&Failure> {
        match &self.held {
            Held::File(_) => None,
            Held::Directory(model) => model.trouble(),
        }
    }

    /// Why a tensor cannot be read, if a part of it is not there.
    pub fn why_missing(&self, listed: &Listed) -> Option<&str> {
        match &self.held {
            Held::File(_) => None,
            Held::Directory(model) => model.why_missing(listed),
        }
    }

    /// True if a tensor, or a part of it, is among what is not there.
    pub fn is_missing(&self, listed: &Listed) -> bool {
        match &self.held {
            Held::File(_) => false,
            Held::Directory(model) => model.is_missing(listed),
        }
    }

    /// One of its tensors, to be read. Fails if its elements are no plain bytes, or are not there.
    pub fn bytes(&self, listed: &Listed) -> io::Result<Bytes> {
        self.bytes_for(listed, &Rc::new(Account::endless()))
    }

    fn bytes_for(&self, listed: &Listed, account: &Rc<Account>) -> io::Result<Bytes> {
        match &self.held {
            Held::File(file) => file.bytes(&listed.tensor).map(Bytes::One),
            Held::Directory(model) => model.bytes(listed, account),
        }
    }

    /// One of its tensors, to be read as one of many that somebody asks for: what that takes counts for what it is read
    /// from, and has an end.
    pub fn bytes_within(&self, listed: &Listed) -> io::Result<(Bytes, Rc<Account>)> {
        let thing = match &self.held {
            Held::File(_) => Thing::File,
            Held::Directory(model) => model.thing(listed),
        };
        if thing != Thing::File {
            let account = self.accounts.borrow_mut().of_thing(thing);
            return Ok((self.bytes_for(listed, &account)?, account));
        }
        let bytes = self.bytes(listed)?;
        let account = match &bytes {
            Bytes::One(one) => self.accounts.borrow_mut().of_file(one.file())?,
            _ => self.accounts.borrow_mut().of_thing(thing),
        };
        Ok((bytes, account))
    }

    /// What an array of it has taken, and may.
    pub fn account_of_array(&self, listed: &Listed) -> Rc<Account> {
        self.accounts.borrow_mut().of_thing(Thing::Array(listed.number()))
    }

    /// What a file of it has taken, and may.
    pub fn account_of(&self, file: &File) -> io::Result<Rc<Account>> {
        self.accounts.borrow_mut().of_file(file)
    }

    /// Of an array in chunks that are not read, what its metadata says, and the chunks.
    pub fn chunks(&self, listed: &Listed) -> Option<(&Array, &Chunks)> {
        match &self.held {
            Held::File(_) => None,
            Held::Directory(model) => model.chunks(listed),
        }
    }

    /// Of a tensor that is no plain bytes, the file and the bytes of its encoding.
    pub fn encoded(&self, listed: &Listed) -> Result<Option<(Arc<File>, u64, u64)>, Failure> {
        let Tensor { location: Location::Encoded { offset, len }, .. } = listed.tensor else { return Ok(None) };
        let file = match &self.held {
            Held::File(file) => file.file().clone(),
            Held::Directory(model) => match model.place_of(listed) {
                Some(place) => place.open()?.into(),
                None => return Ok(None),
            },
        };
        Ok(Some((file, offset, len)))
    }
}
