//! How a store is reached.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

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
    /// How an S3 store encrypts what is put.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sse: Option<String>,
    /// With which key of its key management service: the key's name, which is none of its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sse_kms_key: Option<String>,
    /// In which class of the store objects are put.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
}

impl Access {
    /// Fails if a store of this scheme cannot do what is asked for. Nobody is to believe that it was done.
    pub fn check(&self, scheme: &str) -> Result<()> {
        let refused = |what: &str| Err(Error::Refused(what.to_owned()));
        let is_amazons = matches!(scheme, "s3" | "s3a");
        if self.endpoint.is_some() && scheme == "file" {
            return refused("--endpoint is for object stores; a directory is where its URL says");
        }
        if self.region.is_some() && !is_amazons {
            return refused("--region is for s3; other stores find a bucket or container by its name");
        }
        if (self.sse.is_some() || self.sse_kms_key.is_some()) && !is_amazons {
            return refused("--sse is for s3; other stores encrypt as their bucket or container says");
        }
        if self.sse_kms_key.is_some() && self.sse.as_ref().is_none_or(|sse| !sse.starts_with("aws:kms")) {
            return refused("--sse-kms-key takes --sse aws:kms or --sse aws:kms:dsse");
        }
        if self.storage_class.is_some() && scheme == "file" {
            return refused("--storage-class is for object stores; a directory has none");
        }
        self.storage_class.as_ref().map_or(Ok(()), |class| check_class(scheme, class))
    }
}

/// Fails for a class that a store of this scheme does not know, or whose objects cannot be read at once: all that a
/// carrier, a check or a restore reads would have to be asked for hours before. Which classes there are behind `s3`,
/// the store itself has to say, as others than Amazon's have their own.
fn check_class(scheme: &str, class: &str) -> Result<()> {
    let is_one = |of: &[&str]| of.iter().any(|known| known.eq_ignore_ascii_case(class));
    let (known, asleep): (&[&str], &[&str]) = match scheme {
        "gs" => (&["STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"], &[]),
        "az" | "azure" | "adl" | "abfs" | "abfss" => (&["Hot", "Cool", "Cold", "Archive"], &["Archive"]),
        "s3" | "s3a" => (&[], &["GLACIER", "DEEP_ARCHIVE"]),
        _ => (&[], &["GLACIER", "DEEP_ARCHIVE", "Archive"]),
    };
    let refused = |what: String| Err(Error::Refused(format!("--storage-class {class}: {what}")));
    if is_one(asleep) {
        return refused("objects of this class cannot be read at once".into());
    }
    if !known.is_empty() && !is_one(known) {
        let known: Vec<&str> = known.iter().copied().filter(|class| !asleep.contains(class)).collect();
        return refused(format!("this store has no such class; there are {}", known.join(", ")));
    }
    Ok(())
}
