//! The object store that a repository is in: put, get, list, delete.
//!
//! Calls wait until they are done, and other code need not know that a runtime does them. Puts of objects are the one
//! thing that goes on beside the caller ([`Puts`]).

mod directory;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutMode, PutOptions, RetryConfig};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use url::Url;

use crate::error::{Error, Result};
use crate::place::directory::Directory;

/// Bytes that may be on their way to the store at a time.
const IN_FLIGHT: usize = 192 << 20;
/// What they are counted in.
const GRAIN: usize = 64 << 10;
/// Nothing that a carrier puts is larger.
const LARGEST: u64 = 256 << 20;

/// What is to be known of a store beside its URL. None of it is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Where the store is, if not where its provider has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Its region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Bytes a second that may be put; no limit if nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
}

/// An object as a listing tells of it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name in the repository.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// When it was put, by the store's clock, in seconds since 1970.
    pub put: i64,
}

/// A place in an object store.
#[derive(Debug)]
pub struct Place {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    shown: String,
    runtime: Runtime,
    bandwidth: Option<u64>,
}

impl Place {
    /// The place that a URL names; a directory is made if it is not there.
    pub fn make(url: &str, access: &Access) -> Result<Self> {
        if let Some(directory) = Url::parse(url).ok().filter(|url| url.scheme() == "file")
            && let Ok(directory) = directory.to_file_path()
        {
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
        if parsed.scheme() == "file" {
            let directory = parsed.to_file_path().map_err(|()| refused("names no directory".into()))?;
            let store = Directory::open(&directory).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => refused("the store is not there".into()),
                _ => Error::Host { path: url.to_owned(), what: "open", source },
            })?;
            return Self::new(Arc::new(store), Path::default(), url.to_owned(), access);
        }
        // Nothing else has chosen one, and if something has, that is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let failed = |source| Error::Store { object: url.to_owned(), what: "open", source };
        let (scheme, path) = ObjectStoreScheme::parse(&parsed).map_err(|error| failed(error.into()))?;
        if scheme == ObjectStoreScheme::AmazonS3 {
            let store = s3(&parsed, options(access)).map_err(failed)?;
            let prefix = Path::parse(path).map_err(|error| failed(error.into()))?;
            return Self::new(Arc::new(store), prefix, url.to_owned(), access);
        }
        let (store, prefix) = object_store::parse_url_opts(&parsed, options(access)).map_err(failed)?;
        Self::new(store.into(), prefix, url.to_owned(), access)
    }

    /// A place in a store of the caller's.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path, shown: String, access: &Access) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|source| Error::Host { path: "threads".into(), what: "start", source })?;
        Ok(Self { store, prefix, shown, runtime, bandwidth: access.bandwidth })
    }

    /// Its URL.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn failed<'a>(&'a self, name: &'a str, what: &'static str) -> impl Fn(object_store::Error) -> Error + 'a {
        move |source| Error::Store { object: format!("{}/{name}", self.shown.trim_end_matches('/')), what, source }
    }

    /// All bytes of an object; `None` if there is none.
    pub fn get(&self, name: &str) -> Result<Option<Bytes>> {
        self.runtime.block_on(async {
            match self.store.get(&self.path(name)).await {
                Ok(found) if found.meta.size > LARGEST => {
                    let size = found.meta.size;
                    Err(Error::Refused(format!("{}/{name}: {size} bytes, which no carrier has put", self.shown)))
                }
                Ok(found) => found.bytes().await.map(Some).map_err(self.failed(name, "read")),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(self.failed(name, "read")(error)),
            }
        })
    }

    /// Some bytes of an object; `None` if there is none.
    pub fn get_range(&self, name: &str, range: std::ops::Range<u64>) -> Result<Option<Bytes>> {
        match self.runtime.block_on(self.store.get_range(&self.path(name), range)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(name, "read")(error)),
        }
    }

    /// Puts an object under a name that nobody has; false if somebody has it.
    pub fn put_new(&self, name: &str, bytes: Bytes) -> Result<bool> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.runtime.block_on(self.store.put_opts(&self.path(name), bytes.into(), options)) {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(self.failed(name, "put")(error)),
        }
    }

    /// Removes an object; one that is not there is fine.
    pub fn delete(&self, name: &str) -> Result<()> {
        match self.runtime.block_on(self.store.delete(&self.path(name))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(name, "remove")(error)),
        }
    }

    /// Calls back with every object below a directory, in no order.
    pub fn list(&self, directory: &str, mut each: impl FnMut(Listed)) -> Result<()> {
        let below = self.path(directory);
        let skip = self.prefix.parts().count();
        self.runtime.block_on(async {
            let mut found = self.store.list(Some(&below));
            while let Some(one) = found.try_next().await.map_err(self.failed(directory, "list"))? {
                let parts: Vec<String> = one.location.parts().skip(skip).map(|part| part.as_ref().to_owned()).collect();
                each(Listed { name: parts.join("/"), size: one.size, put: one.last_modified.timestamp() });
            }
            Ok(())
        })
    }

    /// Puts that go on beside whoever asks for them.
    pub fn puts(&self) -> Puts<'_> {
        let room = IN_FLIGHT / GRAIN;
        Puts { place: self, room: Arc::new(Semaphore::new(room)), all: room as u32, failed: Arc::default(), pace: None }
    }
}

/// Puts on their way, with a bound on their bytes.
#[derive(Debug)]
pub struct Puts<'a> {
    place: &'a Place,
    room: Arc<Semaphore>,
    all: u32,
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
        let (store, path, failed) = (self.place.store.clone(), self.place.path(&name), self.failed.clone());
        let object = format!("{}/{name}", self.place.shown.trim_end_matches('/'));
        runtime.spawn(async move {
            if let Err(source) = store.put(&path, bytes.into()).await {
                let mut failed = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                failed.get_or_insert(Error::Store { object, what: "put", source });
            }
            drop(permit);
        });
        Ok(())
    }

    /// Returns once all of them are done.
    pub fn finish(&mut self) -> Result<()> {
        // Whoever has all the room is alone.
        drop(self.place.runtime.block_on(self.room.acquire_many(self.all)));
        self.told()
    }

    fn told(&self) -> Result<()> {
        let failed = self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        failed.map_or(Ok(()), Err)
    }

    fn keep_pace(&mut self, bytes: u64) {
        let Some(limit) = self.place.bandwidth.filter(|limit| *limit > 0) else { return };
        let (since, put) = self.pace.get_or_insert_with(|| (Instant::now(), 0));
        *put += bytes;
        let due = Duration::from_secs_f64(*put as f64 / limit as f64);
        std::thread::sleep(due.saturating_sub(since.elapsed()));
    }
}

/// An S3 store. What fails is tried again, but nobody waits for minutes to hear of it.
fn s3(url: &Url, options: HashMap<String, String>) -> object_store::Result<AmazonS3> {
    let retry = RetryConfig { max_retries: 5, retry_timeout: Duration::from_secs(30), ..RetryConfig::default() };
    let builder = options.into_iter().fold(AmazonS3Builder::new(), |builder, (key, value)| match key.parse() {
        Ok(key) => builder.with_config(key, value),
        Err(_) => builder,
    });
    builder.with_url(url.to_string()).with_retry(retry).build()
}

/// What the environment and the usual files say, and what was asked for.
fn options(access: &Access) -> HashMap<String, String> {
    let mut options: HashMap<String, String> = HashMap::new();
    for (name, value) in std::env::vars_os() {
        let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else { continue };
        if ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|whose| name.starts_with(whose)) {
            options.insert(name.to_ascii_lowercase(), value);
        }
    }
    if !options.contains_key("aws_access_key_id") {
        options.extend(aws_profile());
    }
    if let Some(endpoint) = &access.endpoint {
        options.insert("aws_endpoint".into(), endpoint.clone());
    }
    if let Some(region) = &access.region {
        options.insert("aws_region".into(), region.clone());
    }
    let endpoint = ["aws_endpoint", "aws_endpoint_url"].iter().find_map(|name| options.get(*name));
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        options.insert("allow_http".into(), "true".into());
    }
    options
}

/// The keys in the file that Amazon's own tools use.
fn aws_profile() -> HashMap<String, String> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let file = std::env::var_os("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
    let file = file.or_else(|| home.map(|home| home.join(".aws/credentials")));
    let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    keys_of(&text, &std::env::var("AWS_PROFILE").unwrap_or_else(|_| "default".into()))
}

fn keys_of(text: &str, profile: &str) -> HashMap<String, String> {
    const KEYS: [&str; 3] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
    let mut keys = HashMap::new();
    let mut here = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            here = name.trim() == profile;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| here)
            && KEYS.contains(&key.trim())
        {
            keys.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_profile() {
        let text =
            "[default]\naws_access_key_id = A\naws_secret_access_key=B\n[other]\naws_access_key_id = C\nregion=x\n";
        let keys = |profile| keys_of(text, profile);
        assert_eq!(keys("default").get("aws_secret_access_key").map(String::as_str), Some("B"));
        assert_eq!(keys("other"), HashMap::from([("aws_access_key_id".to_owned(), "C".to_owned())]));
        assert!(keys("none").is_empty());
    }

    #[test]
    fn a_url_has_no_credentials_and_is_one() {
        for url in ["s3://key:secret@bucket/x", "bucket", "nonsense://x"] {
            assert!(Place::open(url, &Access::default()).is_err(), "{url}");
        }
        let said = Place::open("s3://key:secret@bucket/x", &Access::default()).unwrap_err().to_string();
        assert!(!said.contains("secret"), "{said}");
    }
}
