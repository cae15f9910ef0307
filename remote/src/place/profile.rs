//! The keys and the region in the files that Amazon's own tools use
//! (<https://docs.aws.amazon.com/cli/latest/userguide/cli-configure-files.html>).

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use object_store::aws::AwsCredential;
use object_store::{CredentialProvider, Error, Result};

const STORE: &str = "S3";

/// A profile of a user's.
#[derive(Debug)]
pub struct Profile {
    name: String,
    credentials: Option<PathBuf>,
    config: Option<PathBuf>,
}

/// Its keys. Whoever renews them, as those are that end after an hour, writes the file anew; so it is looked at before
/// each request, and read when it has changed.
#[derive(Debug)]
pub struct Keys {
    file: PathBuf,
    profile: String,
    read: Mutex<Option<(Option<SystemTime>, Arc<AwsCredential>)>>,
}

impl Profile {
    /// The one that the environment names, or else `default`.
    pub fn of_user() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let file = |variable: &str, place: &str| {
            let said = std::env::var_os(variable).map(PathBuf::from);
            said.or_else(|| home.as_ref().map(|home| home.join(place)))
        };
        Self {
            name: std::env::var("AWS_PROFILE").unwrap_or_else(|_| "default".into()),
            credentials: file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"),
            config: file("AWS_CONFIG_FILE", ".aws/config"),
        }
    }

    /// Its keys, if it has some.
    pub fn keys(&self) -> Option<Keys> {
        let files = [&self.credentials, &self.config].into_iter().flatten();
        let all = files.map(|file| Keys { file: file.clone(), profile: self.name.clone(), read: Mutex::default() });
        all.into_iter().find(|keys| keys.current().is_ok())
    }

    /// Its region, if it has one.
    pub fn region(&self) -> Option<String> {
        let text = fs::read_to_string(self.config.as_ref()?).ok()?;
        value(&text, &self.name, "region").map(str::to_owned)
    }
}

impl Keys {
    fn current(&self) -> std::io::Result<Arc<AwsCredential>> {
        let changed = fs::metadata(&self.file)?.modified().ok();
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, keys)) = read.as_ref().filter(|(of, _)| *of == changed) {
            return Ok(keys.clone());
        }
        let text = fs::read_to_string(&self.file)?;
        let said = |key| value(&text, &self.profile, key).map(str::to_owned);
        let (Some(key_id), Some(secret_key)) = (said("aws_access_key_id"), said("aws_secret_access_key")) else {
            // A file that is being written anew has none for a moment.
            return read.as_ref().map(|(_, keys)| keys.clone()).ok_or(std::io::ErrorKind::NotFound.into());
        };
        let keys = Arc::new(AwsCredential { key_id, secret_key, token: said("aws_session_token") });
        *read = Some((changed, keys.clone()));
        Ok(keys)
    }
}

#[async_trait]
impl CredentialProvider for Keys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> Result<Arc<AwsCredential>> {
        self.current().map_err(|error| {
            let source = format!("{}: the keys of profile {}: {error}", self.file.display(), self.profile).into();
            Error::Generic { store: STORE, source }
        })
    }
}

/// What a profile says of a key. In the one file its section is called by its name, in the other `profile NAME`.
fn value<'a>(text: &'a str, profile: &str, key: &str) -> Option<&'a str> {
    let mut here = false;
    text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])).find_map(|line| {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let name = name.trim();
            here = name.strip_prefix("profile ").map_or(name, str::trim) == profile;
        }
        let (name, value) = line.split_once('=').filter(|_| here)?;
        (name.trim() == key).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_profile() {
        let text = "# aws_access_key_id = N\n[default]\naws_access_key_id = A\naws_secret_access_key=B\n\
                    [profile other]\naws_access_key_id = C\nregion=x\n";
        assert_eq!(value(text, "default", "aws_access_key_id"), Some("A"));
        assert_eq!(value(text, "default", "aws_secret_access_key"), Some("B"));
        assert_eq!(value(text, "other", "aws_access_key_id"), Some("C"));
        assert_eq!(value(text, "other", "region"), Some("x"));
        assert_eq!(value(text, "default", "region"), None);
        assert_eq!(value(text, "none", "aws_access_key_id"), None);
    }

    /// A carrier goes on with those that were written while it was at work.
    #[test]
    fn keys_that_are_renewed_are_used() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let keys = Keys { file: file.path().into(), profile: "default".into(), read: Mutex::default() };
        let written = |text: &str, age: u64| {
            fs::write(file.path(), text).unwrap();
            let time = SystemTime::now() - std::time::Duration::from_secs(age);
            file.as_file().set_modified(time).unwrap();
        };
        assert!(keys.current().is_err());
        written("[default]\naws_access_key_id=A\naws_secret_access_key=B\naws_session_token=old\n", 90);
        assert_eq!(keys.current().unwrap().token.as_deref(), Some("old"));
        written("[default]\naws_access_key_id=A\naws_secret_access_key=B\naws_session_token=new\n", 60);
        assert_eq!(keys.current().unwrap().token.as_deref(), Some("new"));
        // While somebody writes it.
        written("", 30);
        assert_eq!(keys.current().unwrap().token.as_deref(), Some("new"));
    }
}
