//! The object store that a repository is in: put, get, list, delete.
//!
//! Calls wait until they are done, and other code need not know that a runtime does them. Puts of objects are the one
//! thing that goes on beside the caller ([`Puts`]).

mod access;
mod directory;
mod pieces;
mod profile;
mod provider;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attribute, AttributeValue, GetResult, GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt, ObjectStoreScheme,
    PutMode, PutOptions, PutPayload,
};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinHandle};
use url::Url;

use crate::crypt::{Cipher, OVERHEAD};
use crate::error::{Error, Result};
use crate::place::directory::{Directory, object_of};

pub use access::Access;
pub use pieces::Sink;

/// Bytes that may be on their way to the store at a time.
const IN_FLIGHT: usize = 192 << 20;
/// What they are counted in.
const GRAIN: usize = 64 << 10;
/// Nothing that a carrier puts is larger.
const LARGEST: u64 = 256 << 20;

/// Threads that bytes are put and got by.
const WORKERS: usize = 2;
/// So many objects are looked at beside each other.
const LOOKS: usize = 16;
/// So many are removed at once: no store takes more of them in one request.
const AT_ONCE: usize = 1000;

/// What does not stand for itself in the path of a URL.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'#').add(b'?').add(b'"').add(b'<').add(b'>').add(b'`');

/// For so long an answer is waited for, and the next bytes of one.
const ANSWER: Duration = Duration::from_secs(60);
/// Bytes a second of each object that is put, on the slowest link on which anything is carried.
const SLOWEST: u64 = 32 << 10;

/// An object as a listing tells of it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name in the repository.
    pub name: String,
    /// Bytes that are in it.
    pub size: u64,
    /// When it was put, by the store's clock, in seconds since 1970.
    pub put: i64,
}

/// What a listing comes as.
type Found = BoxStream<'static, object_store::Result<ObjectMeta>>;

/// A place in an object store.
#[derive(Debug)]
pub struct Place {
    store: Arc<dyn ObjectStore>,
    /// The store, if it is a directory.
    directory: Option<Directory>,
    prefix: Path,
    shown: String,
    runtime: Arc<Runtime>,
    bandwidth: Option<u64>,
    class: Option<String>,
    cipher: Option<Cipher>,
    hears: Hears,
    halted: Halted,
}

/// Who hears how many bytes an object has that was got.
#[derive(Clone, Default)]
struct Hears(Option<Arc<dyn Fn(u64) + Send + Sync>>);

impl fmt::Debug for Hears {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Hears")
    }
}

impl Place {
    /// The place that a URL names; a directory is made if it is not there.
    pub fn make(url: &str, access: &Access) -> Result<Self> {
        let parsed = Url::parse(url).ok();
        // Two that differ in nothing else would be one place.
        if parsed.as_ref().is_some_and(|url| url.query().is_some() || url.fragment().is_some()) {
            let why = "what is behind `?` or `#` names no place; in a name they are written %3F and %23";
            return Err(Error::Refused(format!("{}: {why}", url.split(['?', '#']).next().unwrap_or_default())));
        }
        let is_whole = !url.contains(char::is_control) && url.to_ascii_lowercase().starts_with("file://");
        if let Some(directory) = parsed.filter(|url| url.scheme() == "file" && is_whole)
            && let Ok(directory) = directory.to_file_path()
        {
            access.check("file")?;
            let failed = |source| Error::Host { path: url.to_owned(), what: "make", source };
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        Self::open(url, access)
    }

    /// The place that a URL names. Credentials are found where the provider's own tools look for them.
    pub fn open(url: &str, access: &Access) -> Result<Self> {
        let refused = |reason: String| Error::Refused(format!("{url}: {reason}"));
        let parsed = Url::parse(url)
            .map_err(|error| refused(format!("no URL such as s3://bucket/prefix or file:///directory ({error})")))?;
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(Error::Refused("credentials belong into the environment, not into a URL".into()));
        }
        if url.contains(char::is_control) {
            return Err(Error::Refused(format!(
                "{}: a control character in a URL is written as %0A or the like",
                one_line(url)
            )));
        }
        access.check(parsed.scheme())?;
        if parsed.scheme() == "file" {
            if !url.to_ascii_lowercase().starts_with("file://") {
                return Err(refused("a directory's URL begins with file:///".into()));
            }
            let directory = parsed.to_file_path().map_err(|()| refused("names no directory".into()))?;
            let store = Directory::open(&directory).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => Error::NotYet(format!("{url}: the store is not there")),
                _ => Error::Host { path: url.to_owned(), what: "open", source },
            })?;
            let place = Self::new(Arc::new(store.clone()), Path::default(), url.to_owned(), access)?;
            return Ok(Self { directory: Some(store), ..place });
        }
        // Nothing else has chosen one, and if something has, that is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let failed = |source| Error::Store { object: url.to_owned(), what: "open", source };
        let (scheme, path) = ObjectStoreScheme::parse(&parsed).map_err(|error| failed(error.into()))?;
        let prefix = Path::parse(path).map_err(|error| failed(error.into()))?;
        let unknown = || refused("no store of this kind is known; there are s3, gs, az and file".into());
        let store = provider::store(&scheme, &parsed, access).ok_or_else(unknown)?;
        Self::new(store.map_err(failed)?, prefix, url.to_owned(), access)
    }

    /// A place in a store of the caller's.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path, shown: String, access: &Access) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
        let runtime = runtime.map_err(|source| Error::Host { path: "threads".into(), what: "start", source })?;
        let (bandwidth, class) = (access.bandwidth, access.storage_class.clone());
        let runtime = Arc::new(runtime);
        Ok(Self {
            store,
            directory: None,
            prefix,
            shown,
            runtime,
            bandwidth,
            class,
            cipher: None,
            hears: Hears::default(),
            halted: Halted::default(),
        })
    }

    /// What the places directly below this one are called, in order, whatever is there.
    pub fn names_below(&self) -> Result<Vec<String>> {
        let found = self.runtime.block_on(within(ANSWER, self.store.list_with_delimiter(Some(&self.prefix))));
        let found = found.map_err(self.failed("", "list"))?;
        let names = found.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned));
        let mut names: Vec<String> = names.filter(|name| is_name(name)).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// The place of this name directly below this one.
    pub fn below(&self, name: &str) -> Result<Self> {
        let mut shown = format!("{}/", self.shown.trim_end_matches('/'));
        shown.extend(utf8_percent_encode(name, ESCAPED));
        if !is_name(name) {
            return Err(Error::Refused(format!("{shown}: not the name of a place")));
        }
        let (store, runtime) = (self.store.clone(), self.runtime.clone());
        let (bandwidth, class) = (self.bandwidth, self.class.clone());
        let (prefix, hears) = (Path::default(), self.hears.clone());
        let (cipher, halted) = (None, self.halted.clone());
        let place = Self { store, directory: None, prefix, shown, runtime, bandwidth, class, cipher, hears, halted };
        if let Some(directory) = &self.directory {
            let failed = |source| Error::Host { path: place.shown.clone(), what: "open", source };
            let directory = directory.below(name).map_err(failed)?;
            return Ok(Self { store: Arc::new(directory.clone()), directory: Some(directory), ..place });
        }
        let way = format!("{}/{name}", self.prefix);
        let failed = |source: object_store::path::Error| Error::Refused(format!("{}: {source}", place.shown));
        let prefix = Path::parse(way.trim_start_matches('/')).map_err(failed)?;
        Ok(Self { prefix, ..place })
    }

    /// The place, where from now on all that is put is encrypted, and all that is got was.
    pub fn encrypted_with(self, cipher: Cipher) -> Self {
        Self { cipher: Some(cipher), ..self }
    }

    /// What encrypts what is put, if anything does.
    pub fn cipher(&self) -> Option<&Cipher> {
        self.cipher.as_ref()
    }

    /// The key of the BLAKE3 that objects are named after, where they are encrypted.
    pub fn names(&self) -> Option<&[u8; 32]> {
        self.cipher.as_ref().map(Cipher::names)
    }

    /// Its URL.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn failed<'a>(&'a self, name: &'a str, what: &'static str) -> impl Fn(object_store::Error) -> Error + 'a {
        move |source| Error::Store { object: self.object(name), what, source }
    }

    /// All bytes of an object; `None` if there is none.
    pub fn get(&self, name: &str) -> Result<Option<Bytes>> {
        match (self.get_as_put(name)?, &self.cipher) {
            (Some(bytes), Some(cipher)) => opened(cipher, name, bytes).map(Some),
            (bytes, _) => Ok(bytes),
        }
    }

    /// As [`Place::get`], of what the store has, be it encrypted or not.
    pub fn get_as_put(&self, name: &str) -> Result<Option<Bytes>> {
        let got = self.runtime.block_on(got(self.store.clone(), self.path(name), self.object(name)));
        if let (Ok(Some(bytes)), Some(hears)) = (&got, &self.hears.0) {
            hears(bytes.len() as u64);
        }
        got
    }

    /// The place, where from now on somebody hears of the bytes that are got, one object after the other.
    pub fn heard_by(self, hears: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { hears: Hears(Some(Arc::new(hears))), ..self }
    }

    /// As [`Place::get`], beside whoever asks for it, and so is what is to be done with the bytes.
    pub fn begin<T, F>(&self, name: &str, look: F) -> Coming<T>
    where
        T: Send + 'static,
        F: FnOnce(Bytes) -> T + Send + 'static,
    {
        let (get, cipher) = (got(self.store.clone(), self.path(name), self.object(name)), self.cipher.clone());
        let (name, runtime) = (name.to_owned(), self.runtime.clone());
        let task = runtime.spawn(async move {
            let Some(bytes) = get.await? else { return Ok(None) };
            let looked = tokio::task::spawn_blocking(move || {
                let bytes = match cipher {
                    Some(cipher) => opened(&cipher, &name, bytes)?,
                    None => bytes,
                };
                Ok(Some(look(bytes)))
            });
            looked.await.unwrap_or_else(|error| Err(not_done(&error)))
        });
        Coming { task, runtime }
    }

    /// What an object is called in errors.
    fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.shown.trim_end_matches('/'))
    }

    /// How many bytes are in each of some objects, as the store tells; `None` of one that is not there.
    pub fn sizes(&self, names: &[String]) -> Result<Vec<Option<u64>>> {
        let over = self.cipher.as_ref().map_or(0, |_| OVERHEAD);
        let size = |name: &String| {
            let (path, name) = (self.path(name), name.clone());
            async move {
                match within(ANSWER, self.store.head(&path)).await {
                    Ok(found) => Ok(Some(found.size.saturating_sub(over))),
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    Err(error) => Err(self.failed(&name, "look at")(error)),
                }
            }
        };
        let all = stream::iter(names.iter().map(size).collect::<Vec<_>>());
        self.runtime.block_on(all.buffered(LOOKS).try_collect())
    }

    /// Puts an object under a name that nobody has; false if somebody has it.
    pub fn put_new(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.put_new_payload(name, sealed(self.cipher.as_ref(), name, bytes)?)
    }

    /// As [`Place::put_new`], and not encrypted.
    pub fn put_new_as_is(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.put_new_payload(name, bytes.into())
    }

    fn put_new_payload(&self, name: &str, payload: PutPayload) -> Result<bool> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let limit = time_for(payload.content_length() as u64);
        let path = self.path(name);
        let put = async { within(limit, self.store.put_opts(&path, payload, options)).await };
        match self.runtime.block_on(put) {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(self.failed(name, "put")(error)),
        }
    }

    /// Removes an object; one that is not there is fine.
    pub fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match self.runtime.block_on(async { within(ANSWER, self.store.delete(&path)).await }) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(name, "remove")(error)),
        }
    }

    /// Removes objects, which are gone in no order, and many of them with one request where the store knows how; those
    /// that are not there are fine. Calls back with how many are gone; false once that says to go on no more.
    pub fn delete_all(&self, names: &[String], mut goes_on: impl FnMut(u64) -> bool) -> Result<bool> {
        let mut gone = 0;
        for some in names.chunks(AT_ONCE) {
            let paths: Vec<_> = some.iter().map(|name| Ok(self.path(name))).collect();
            self.runtime.block_on(async {
                let mut done = self.store.delete_stream(stream::iter(paths).boxed());
                loop {
                    match within(ANSWER, done.try_next()).await {
                        Ok(None) => return Ok(()),
                        Ok(Some(_)) | Err(object_store::Error::NotFound { .. }) => {}
                        Err(error) => return Err(self.failed("objects", "remove")(error)),
                    }
                }
            })?;
            gone += some.len() as u64;
            if gone < names.len() as u64 && !goes_on(gone) {
                return Ok(false);
            }
        }
        goes_on(gone);
        Ok(true)
    }

    /// Calls back with every object below a directory, in no order.
    pub fn list(&self, directory: &str, each: impl FnMut(Listed)) -> Result<()> {
        self.each_of(directory, self.store.list(Some(&self.path(directory))), each)
    }

    /// As above, with those alone whose names come after this one.
    pub fn list_after(&self, directory: &str, name: &str, each: impl FnMut(Listed)) -> Result<()> {
        let found = self.store.list_with_offset(Some(&self.path(directory)), &self.path(name));
        self.each_of(directory, found, each)
    }

    fn each_of(&self, directory: &str, mut found: Found, mut each: impl FnMut(Listed)) -> Result<()> {
        let skip = self.prefix.parts().count();
        let over = self.cipher.as_ref().map_or(0, |_| OVERHEAD);
        self.runtime.block_on(async {
            while let Some(one) = within(ANSWER, found.try_next()).await.map_err(self.failed(directory, "list"))? {
                let parts: Vec<String> = one.location.parts().skip(skip).map(|part| part.as_ref().to_owned()).collect();
                let (size, put) = (one.size.saturating_sub(over), one.last_modified.timestamp());
                each(Listed { name: parts.join("/"), size, put });
            }
            Ok(())
        })
    }

    /// Removes what programs that were killed have left of objects of which they were putting the bytes: those that
    /// `is_done` says so of, given the object's name. Returns how many bytes each has.
    pub fn remove_staged(&self, dry_run: bool, is_done: impl Fn(&str, i64) -> bool) -> Result<Vec<u64>> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        let mut removed = Vec::new();
        for staged in directory.staged().map_err(self.failed("", "list"))? {
            if object_of(&staged).is_none_or(|object| !is_done(object, staged.last_modified.timestamp())) {
                continue;
            }
            removed.push(staged.size);
            if !dry_run {
                let failed = |source| Error::Host { path: staged.location.to_string(), what: "remove", source };
                directory.delete(&staged.location).map_err(failed)?;
            }
        }
        Ok(removed)
    }

    /// Makes durable what others have put below a directory, and may not have seen to the end.
    pub fn make_durable(&self, below: &str) -> Result<()> {
        let failed = |source| Error::Host { path: format!("{}/{below}", self.shown), what: "sync", source };
        self.directory.as_ref().map_or(Ok(()), |directory| directory.sync(below).map_err(failed))
    }

    /// What can have all that goes on beside stand still.
    pub fn halts(&self) -> Halts {
        Halts { runtime: self.runtime.clone(), halted: self.halted.clone() }
    }

    /// Puts that go on beside whoever asks for them.
    pub fn puts(&self) -> Puts<'_> {
        let room = IN_FLIGHT / GRAIN;
        let (room, all) = (Arc::new(Semaphore::new(room)), room as u32);
        Puts { place: self, room, all, arrived: Arc::default(), failed: Arc::default(), pace: None }
    }
}

/// The threads by which bytes are put and got.
#[derive(Debug)]
pub struct Halts {
    runtime: Arc<Runtime>,
    halted: Halted,
}

/// Milliseconds for which all that goes on beside has stood still.
type Halted = Arc<AtomicU64>;

impl Halts {
    /// Has each of them wait, with what it is given for that, before it does anything else. What has been begun by then
    /// may take a little.
    pub fn halt(&self, wait: &(impl Fn() + Clone + Send + 'static)) {
        for worker in 0..WORKERS {
            let (wait, halted) = (wait.clone(), self.halted.clone());
            // Who waits here keeps the whole thread, as is meant.
            self.runtime.spawn(async move {
                let begun = Instant::now();
                wait();
                if worker == 0 {
                    halted.fetch_add(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
                }
            });
        }
    }
}

/// Words that cannot play with the terminal.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// True of what can be the name of a place directly below another one: it is no other place than that.
pub fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains('/') && !name.contains(char::is_control)
}

/// An object that is on its way, and what is made of it.
#[derive(Debug)]
pub struct Coming<T> {
    task: JoinHandle<Result<Option<T>>>,
    runtime: Arc<Runtime>,
}

impl<T> Coming<T> {
    /// What has come.
    pub fn wait(mut self) -> Result<Option<T>> {
        self.runtime.clone().block_on(&mut self.task).unwrap_or_else(|error| Err(not_done(&error)))
    }
}

impl<T> Drop for Coming<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn not_done(error: &JoinError) -> Error {
    Error::Refused(format!("an object could not be fetched: {error}"))
}

/// What is in a store; nothing if there is no such object.
async fn got(store: Arc<dyn ObjectStore>, path: Path, object: String) -> Result<Option<Bytes>> {
    let failed = |object, source| Error::Store { object, what: "read", source };
    match within(ANSWER, store.get(&path)).await {
        Ok(found) if found.meta.size > LARGEST => Err(too_large(&object, found.meta.size)),
        Ok(found) => read(found).await.map(Some).map_err(|source| failed(object, source)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(source) => Err(failed(object, source)),
    }
}

fn too_large(object: &str, size: u64) -> Error {
    Error::Refused(format!("{object}: {size} bytes, which no carrier has put"))
}

/// What was encrypted as an object of this name.
fn opened(cipher: &Cipher, name: &str, bytes: Bytes) -> Result<Bytes> {
    cipher.open(name, bytes).map_err(|what| Error::damaged(name, what))
}

/// The bytes of an object as they come, each of which may keep nobody waiting for too long.
async fn read(found: GetResult) -> object_store::Result<Bytes> {
    let size = found.meta.size as usize;
    let mut stream = match found.payload {
        GetResultPayload::Stream(stream) => stream,
        GetResultPayload::File(..) => return found.bytes().await,
    };
    let mut bytes = BytesMut::with_capacity(size);
    while let Some(next) = within(ANSWER, stream.try_next()).await? {
        bytes.extend_from_slice(&next);
    }
    Ok(bytes.freeze())
}

/// Puts on their way, with a bound on their bytes.
#[derive(Debug)]
pub struct Puts<'a> {
    place: &'a Place,
    room: Arc<Semaphore>,
    all: u32,
    /// Names of those that are there.
    arrived: Arc<Mutex<HashSet<String>>>,
    failed: Arc<Mutex<Option<Error>>>,
    /// Since when is counted, and how many bytes were put since.
    pace: Option<(Instant, u64)>,
}

impl Puts<'_> {
    /// Puts an object, in the place of one of its name. Waits until there is room for it; tells what came of the others
    /// if that is known to be bad.
    pub fn put(&mut self, name: String, bytes: Bytes) -> Result<()> {
        self.told()?;
        self.keep_pace(bytes.len() as u64);
        let grains = (bytes.len() / GRAIN + 1).min(self.all as usize) as u32;
        let runtime = &self.place.runtime;
        let Ok(permit) = runtime.block_on(self.room.clone().acquire_many_owned(grains)) else { return self.told() };
        let (store, path, limit) = (self.place.store.clone(), self.place.path(&name), time_for(bytes.len() as u64));
        let (arrived, failed) = (self.arrived.clone(), self.failed.clone());
        let class = self.place.class.iter().map(|class| (Attribute::StorageClass, AttributeValue::from(class.clone())));
        let options = PutOptions { attributes: class.collect(), ..PutOptions::default() };
        let object = self.place.object(&name);
        let (cipher, halted) = (self.place.cipher.clone(), self.place.halted.clone());
        runtime.spawn(async move {
            let put = match payload(cipher, &name, bytes).await {
                Ok(payload) => {
                    let put = within_and_halts((limit, &halted), store.put_opts(&path, payload, options)).await;
                    put.map_err(|source| Error::Store { object, what: "put", source })
                }
                Err(error) => Err(error),
            };
            match put {
                Ok(_) => drop(locked(&arrived).insert(name)),
                Err(error) => drop(locked(&failed).get_or_insert(error)),
            }
            drop(permit);
        });
        Ok(())
    }

    /// As [`Place::names`].
    pub fn names(&self) -> Option<&[u8; 32]> {
        self.place.names()
    }

    /// The names of those that are there by now.
    pub fn arrived(&self) -> HashSet<String> {
        std::mem::take(&mut *locked(&self.arrived))
    }

    /// Returns once all of them are done.
    pub fn finish(&mut self) -> Result<()> {
        // Whoever has all the room is alone.
        drop(self.place.runtime.block_on(self.room.acquire_many(self.all)));
        self.told()
    }

    fn told(&self) -> Result<()> {
        locked(&self.failed).take().map_or(Ok(()), Err)
    }

    fn keep_pace(&mut self, bytes: u64) {
        let Some(limit) = self.place.bandwidth.filter(|limit| *limit > 0) else { return };
        let (since, put) = self.pace.get_or_insert_with(|| (Instant::now(), 0));
        *put += bytes;
        let due = Duration::from_secs_f64(*put as f64 / limit as f64);
        std::thread::sleep(due.saturating_sub(since.elapsed()));
    }
}

/// What is put of an object of this name with these bytes.
fn sealed(cipher: Option<&Cipher>, name: &str, bytes: Bytes) -> Result<PutPayload> {
    match cipher {
        Some(cipher) => Ok(cipher.seal(name, bytes)?.into_iter().collect()),
        None => Ok(bytes.into()),
    }
}

/// As [`sealed`], beside what else goes on: that takes as long as the processor needs for it.
async fn payload(cipher: Option<Cipher>, name: &str, bytes: Bytes) -> Result<PutPayload> {
    let Some(cipher) = cipher else { return Ok(bytes.into()) };
    let name = name.to_owned();
    let sealed = tokio::task::spawn_blocking(move || sealed(Some(&cipher), &name, bytes)).await;
    sealed.unwrap_or_else(|error| Err(Error::Refused(format!("an object could not be encrypted: {error}"))))
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For so long a put of so many bytes may be on its way, also over a slow link that it shares with others.
fn time_for(bytes: u64) -> Duration {
    ANSWER + Duration::from_secs(bytes / SLOWEST)
}

/// What comes of a call, unless that takes longer.
async fn within<T>(limit: Duration, call: impl Future<Output = object_store::Result<T>>) -> object_store::Result<T> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(no_answer(limit)))
}

/// As [`within`], where it may stand still meanwhile: that does not count.
async fn within_and_halts<T>(
    (limit, halted): (Duration, &AtomicU64),
    call: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<T> {
    let mut call = std::pin::pin!(call);
    let (mut left, mut seen) = (limit, halted.load(Ordering::Relaxed));
    while !left.is_zero() {
        if let Ok(done) = tokio::time::timeout(left, &mut call).await {
            return done;
        }
        let now = halted.load(Ordering::Relaxed);
        (left, seen) = (Duration::from_millis(now.saturating_sub(seen)), now);
    }
    Err(no_answer(limit))
}

fn no_answer(limit: Duration) -> object_store::Error {
    let source = format!("no answer for {} seconds", limit.as_secs()).into();
    object_store::Error::Generic { store: "remote", source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who stood still meanwhile has as long as before for what is left.
    #[test]
    fn what_has_stood_still_is_not_given_up_for_that() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let limit = Duration::from_millis(20);
        let never = || async { std::future::pending::<object_store::Result<()>>().await };
        let late = |halted: Arc<AtomicU64>| async move {
            halted.fetch_add(60_000, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(7)
        };
        runtime.block_on(async {
            assert!(within_and_halts((limit, &AtomicU64::new(5)), never()).await.is_err());
            let halted = Halted::default();
            assert_eq!(within_and_halts((limit, &halted), late(halted.clone())).await.unwrap(), 7);
        });
    }

    /// Has those end who wait, also where a test fails.
    struct Ends(Arc<Mutex<bool>>);

    impl Drop for Ends {
        fn drop(&mut self) {
            *locked(&self.0) = true;
        }
    }

    /// Nothing that is on its way goes on, on any thread, before he who is made way for has ended.
    ///
    /// Proves E33.
    #[test]
    fn what_is_on_its_way_stands_still_while_it_is_halted() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let place = Place::new(store, Path::default(), "memory://".into(), &Access::default()).unwrap();
        let steps = Arc::new(AtomicU64::new(0));
        for _ in 0..4 * WORKERS {
            let steps = steps.clone();
            place.runtime.spawn(async move {
                loop {
                    steps.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
        }
        let until = |done: &dyn Fn() -> bool| {
            assert!((0..60_000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                done()
            }));
        };
        let (waiting, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(false)));
        // Who waits does not for a test that has failed: the runtime ends with it.
        let ends = Ends(is_over.clone());
        let (waits, over) = (waiting.clone(), is_over.clone());
        place.halts().halt(&move || {
            waits.fetch_add(1, Ordering::Relaxed);
            while !*locked(&over) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        until(&|| waiting.load(Ordering::Relaxed) == WORKERS as u64);
        let before = steps.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(steps.load(Ordering::Relaxed), before);
        drop(ends);
        until(&|| steps.load(Ordering::Relaxed) > before);
        assert!(place.halted.load(Ordering::Relaxed) >= 100);
    }

    #[test]
    fn a_url_has_no_credentials_and_is_one() {
        for url in ["s3://key:secret@bucket/x", "bucket", "nonsense://x", "memory:///x", "http://host/x"] {
            assert!(Place::open(url, &Access::default()).is_err(), "{url}");
        }
        for url in ["file:x", "file:/x", "FILE:x"] {
            let said = Place::make(url, &Access::default()).unwrap_err().to_string();
            assert!(said.contains("begins with file:///") && !std::path::Path::new("/x").exists(), "{url}: {said}");
        }
        for url in ["file:///tmp/a\nb", "s3://bucket/a\tb", "s3://bucket/x\r"] {
            let said = Place::make(url, &Access::default()).unwrap_err().to_string();
            assert!(said.contains("control character") && said.lines().count() == 1, "{url:?}: {said}");
        }
        let said = Place::open("s3://key:secret@bucket/x", &Access::default()).unwrap_err().to_string();
        assert!(!said.contains("secret"), "{said}");
    }
}
