//! A store in memory that remembers every put and delete, and fails when told to.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tensorfs_remote::place::{Access, Place};
use tokio::runtime::{Builder, Runtime};

/// What happened to a store.
#[derive(Clone, Debug)]
pub enum Event {
    Put(Path, Bytes),
    Delete(Path),
}

/// The store.
#[derive(Debug)]
pub struct Recorded {
    inner: InMemory,
    events: Mutex<Vec<Event>>,
    /// So many more changes are made; then all fail.
    left: AtomicI64,
    /// Batches are put, and whoever asked hears that they were not.
    loses_answers: AtomicBool,
    /// So many seconds ago all objects but batches and bases were put, beside the time that it is known for.
    age: AtomicI64,
    /// Each batch was put an hour after the one before, long ago, and all else before them; but for bases, of which
    /// each is as old as it is.
    is_hour_each: AtomicBool,
    /// When the hours are counted from.
    began: SystemTime,
    /// The next time that this is read, that fails.
    unread: Mutex<Option<Path>>,
    /// What nobody can put or remove; the next time that it is read, it is not there.
    stubborn: Mutex<(Option<Path>, bool)>,
    /// What is there, and not in any listing.
    unlisted: Arc<Mutex<Option<Path>>>,
    /// The next time that this is read, a byte of it is another one.
    spoilt: Mutex<Option<Path>>,
    /// How many objects are read now, and were at the most; each takes a moment, if that is to be known.
    reads: Option<Mutex<(usize, usize)>>,
    /// How often each object was read.
    got: Mutex<BTreeMap<String, usize>>,
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("recorded")
    }
}

impl Recorded {
    pub fn new() -> Arc<Self> {
        Self::of(&[])
    }

    /// A store to which these things happened.
    pub fn of(events: &[Event]) -> Arc<Self> {
        let inner = InMemory::new();
        runtime().block_on(async {
            for event in events {
                match event {
                    Event::Put(path, bytes) => drop(inner.put(path, bytes.clone().into()).await.unwrap()),
                    Event::Delete(path) => inner.delete(path).await.unwrap(),
                }
            }
        });
        Arc::new(Self {
            inner,
            events: Mutex::new(events.to_vec()),
            left: AtomicI64::new(i64::MAX),
            loses_answers: AtomicBool::new(false),
            age: AtomicI64::new(0),
            is_hour_each: AtomicBool::new(false),
            began: SystemTime::now() - Duration::from_secs(1000 * 3600),
            unread: Mutex::default(),
            stubborn: Mutex::default(),
            unlisted: Arc::default(),
            spoilt: Mutex::default(),
            reads: None,
            got: Mutex::default(),
        })
    }

    /// A store to which these things happened, in which each object takes a moment to be read.
    pub fn slow(events: &[Event]) -> Arc<Self> {
        let mut store = Self::of(events);
        Arc::get_mut(&mut store).unwrap().reads = Some(Mutex::default());
        store
    }

    /// How many objects were read at a time, at the most.
    pub fn most_reads(&self) -> usize {
        self.reads.as_ref().unwrap().lock().unwrap().1
    }

    /// How often each object was read since this was asked last.
    pub fn got(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut *self.got.lock().unwrap())
    }

    pub fn place(self: &Arc<Self>) -> Place {
        Place::new(self.clone(), Path::default(), "memory://".into(), &Access::default()).unwrap()
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// After so many more changes, all fail.
    pub fn fail_after(&self, changes: i64) {
        self.left.store(changes, Ordering::SeqCst);
    }

    /// From now on batches are put, and whoever asked hears that they were not; or no more.
    pub fn lose_answers(&self, lost: bool) {
        self.loses_answers.store(lost, Ordering::SeqCst);
    }

    /// Objects that are there look so many seconds older from now on.
    pub fn age_objects(&self, seconds: i64) {
        self.age.store(seconds, Ordering::SeqCst);
    }

    /// From now on each batch looks as if it was put an hour after the one before, the first ones weeks ago.
    pub fn hour_each(&self, each: bool) {
        self.is_hour_each.store(each, Ordering::SeqCst);
    }

    /// The next time that an object is read, that fails, and not again.
    pub fn fail_to_read(&self, path: &str) {
        *self.unread.lock().unwrap() = Some(path.into());
    }

    /// From now on no listing has this object, or each has all again.
    pub fn leave_out(&self, path: Option<&str>) {
        *self.unlisted.lock().unwrap() = path.map(Path::from);
    }

    /// The next time that an object is read, it has another byte, and not again.
    pub fn spoil_once(&self, path: &Path) {
        *self.spoilt.lock().unwrap() = Some(path.clone());
    }

    /// From now on this object is what it is, though the store says that it was removed; or is not there the next time
    /// that it is read, and then is.
    pub fn insist_on(&self, path: &Path, is_hidden: bool) {
        *self.stubborn.lock().unwrap() = (Some(path.clone()), is_hidden);
    }

    fn insists_on(&self, path: &Path) -> bool {
        self.stubborn.lock().unwrap().0.as_ref() == Some(path)
    }

    /// Everything that is there.
    pub fn objects(&self) -> Vec<(Path, Bytes)> {
        runtime().block_on(async {
            let mut all = Vec::new();
            let mut found = self.inner.list(None);
            while let Some(one) = found.next().await {
                let path = one.unwrap().location;
                let bytes = self.inner.get(&path).await.unwrap().bytes().await.unwrap();
                all.push((path, bytes));
            }
            all.sort();
            all
        })
    }

    /// Other bytes in the place of an object's, as a store that is damaged would give.
    pub fn spoil(&self, path: &Path, bytes: Bytes) {
        runtime().block_on(self.inner.put(path, bytes.into())).unwrap();
    }

    fn change(&self, event: impl FnOnce() -> Event) -> Result<()> {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            return Err(object_store::Error::Generic { store: "recorded", source: "it was told to fail".into() });
        }
        self.events.lock().unwrap().push(event());
        Ok(())
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

#[async_trait]
impl ObjectStore for Recorded {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let bytes = Bytes::from(payload.clone());
        if self.insists_on(location) {
            return Err(object_store::Error::AlreadyExists { path: location.to_string(), source: "it is".into() });
        }
        if opts.mode == object_store::PutMode::Create && self.inner.head(location).await.is_ok() {
            return self.inner.put_opts(location, payload, opts).await;
        }
        self.change(|| Event::Put(location.clone(), bytes))?;
        let put = self.inner.put_opts(location, payload, opts).await;
        if location.as_ref().starts_with("log/") && self.loses_answers.load(Ordering::SeqCst) {
            return Err(object_store::Error::Generic { store: "recorded", source: "the answer was lost".into() });
        }
        put
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(object_store::Error::NotSupported { source: "nobody does".into() })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        *self.got.lock().unwrap().entry(location.to_string()).or_default() += 1;
        if self.unread.lock().unwrap().take_if(|unread| unread == location).is_some() {
            return Err(object_store::Error::Generic { store: "recorded", source: "it was away".into() });
        }
        if self.insists_on(location) && std::mem::take(&mut self.stubborn.lock().unwrap().1) {
            return Err(object_store::Error::NotFound { path: location.to_string(), source: "it is not".into() });
        }
        if let Some(reads) = &self.reads {
            {
                let mut reads = reads.lock().unwrap();
                reads.0 += 1;
                reads.1 = reads.1.max(reads.0);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            reads.lock().unwrap().0 -= 1;
        }
        if self.spoilt.lock().unwrap().take_if(|spoilt| spoilt == location).is_some() {
            let mut bytes = self.inner.get(location).await?.bytes().await?.to_vec();
            bytes[0] ^= 1;
            let other = InMemory::new();
            other.put(location, bytes.into()).await?;
            return other.get_opts(location, options).await;
        }
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let all: Vec<Path> = runtime_free(locations);
        let outcome: Vec<Result<Path>> =
            all.into_iter().map(|path| self.change(|| Event::Delete(path.clone())).map(|()| path)).collect();
        let (good, bad): (Vec<_>, Vec<_>) = outcome.into_iter().partition(Result::is_ok);
        let (kept, good): (Vec<_>, Vec<_>) =
            good.into_iter().partition(|path| path.as_ref().is_ok_and(|path| self.insists_on(path)));
        let bad = bad.into_iter().chain(kept).collect::<Vec<_>>();
        let deleted = self.inner.delete_stream(futures_util::stream::iter(good).boxed());
        deleted.chain(futures_util::stream::iter(bad)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let age = Duration::from_secs(self.age.load(Ordering::SeqCst) as u64);
        let is_hour_each = self.is_hour_each.load(Ordering::SeqCst);
        let began = self.began;
        let aged = move |mut found: ObjectMeta| {
            if is_hour_each && !found.location.as_ref().starts_with("base/") {
                let number = tensorfs_remote::repository::number_in(found.location.as_ref()).unwrap_or(0);
                found.last_modified = (began + Duration::from_secs(3600 * number)).into();
            }
            if found.location.as_ref().starts_with("objects/") {
                found.last_modified -= age;
            }
            found
        };
        let unlisted = self.unlisted.clone();
        let is_listed = move |found: &Result<ObjectMeta>| {
            let unlisted = unlisted.lock().unwrap();
            let is_listed = found.as_ref().is_ok_and(|found| unlisted.as_ref() != Some(&found.location));
            std::future::ready(is_listed)
        };
        self.inner.list(prefix).filter(is_listed).map(move |found| found.map(aged)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(object_store::Error::NotSupported { source: "nobody does".into() })
    }
}

/// What a stream of things that are at hand has.
fn runtime_free(locations: BoxStream<'static, Result<Path>>) -> Vec<Path> {
    let all = locations.filter_map(|path| async move { path.ok() }).collect::<Vec<_>>();
    futures_util::FutureExt::now_or_never(all).unwrap_or_default()
}
