//! What can go wrong, each as one line that a person can act on.

use std::path::PathBuf;
use std::{io, iter};

use tensorfs_layout::reason;

/// An error of a remote, or of the pool that it is of.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pool's own.
    #[error(transparent)]
    Pool(#[from] tensorfs_layout::Error),
    /// The object store refused, failed, or was not reached.
    #[error("{object}: cannot {what}: {}{}", first_line(source), hint(object, source))]
    Store {
        /// What was asked for.
        object: String,
        /// What was to be done with it.
        what: &'static str,
        /// The library's answer.
        source: object_store::Error,
    },
    /// An object is there and not what was put, or is not there though another one names it.
    #[error("{object}: {what}")]
    Damaged {
        /// Its name in the repository.
        object: String,
        /// What is wrong with it.
        what: String,
    },
    /// The remote is as it was before.
    #[error("{remote}: its newest batch is {number}, and this pool has put {put}")]
    RolledBack {
        /// The remote.
        remote: String,
        /// The newest batch that is there.
        number: u64,
        /// The newest one that was put.
        put: u64,
    },
    /// Somebody else has put the batch that was to come next.
    #[error(
        "{remote}: batch {number} was put by another pool or carrier ({by}); of two only one may write here: give this \
         pool a remote of its own, or take this one over with `tensorfs remote set --take-over`"
    )]
    Fenced {
        /// The remote.
        remote: String,
        /// The number of the batch.
        number: u64,
        /// Whose it is.
        by: String,
    },
    /// A call of the host failed.
    #[error("{path}: {what}: {}", reason(source))]
    Host {
        /// The file.
        path: String,
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// What was waited for has not come to the remote in time.
    #[error("{}: not in the remote after {seconds} seconds{why}", path.display())]
    Late {
        /// What was waited for.
        path: PathBuf,
        /// For so long.
        seconds: f64,
        /// What it waits for, if that is known: a semicolon, and why.
        why: String,
    },
    /// What keeps something from being done now, and may be over later without anybody's doing.
    #[error("{0}")]
    NotYet(String),
    /// Files of the pool are elsewhere yet, and somebody fetches them while it is mounted.
    #[error("{0}")]
    Coming(String),
    /// This process is locked in, and may not do what is needed by now.
    #[error("{0}")]
    LockedIn(String),
    /// Whatever else keeps something from being done.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// The exit status of a command that ends so. One that has not come in time may be tried again.
    pub fn status(&self) -> u8 {
        match self {
            Self::Late { .. } => 3,
            _ => 1,
        }
    }

    /// True if what was tried may be done later, though nobody does anything about it.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Store { .. } | Self::Host { .. } | Self::Late { .. } | Self::NotYet(_) | Self::Coming(_) => true,
            // A pool whose server was killed is mounted sooner or later.
            Self::Pool(error) => matches!(error, tensorfs_layout::Error::Invalid { .. }),
            Self::Damaged { .. } | Self::RolledBack { .. } | Self::Fenced { .. } => false,
            Self::LockedIn(_) | Self::Refused(_) => false,
        }
    }

    /// True of a remote that is not as the pool has put it.
    pub fn is_of_remote(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::RolledBack { .. } | Self::Fenced { .. })
    }

    /// As [`Error::Damaged`].
    pub fn damaged(object: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Damaged { object: object.into(), what: what.into() }
    }
}

/// The result of what is done with a remote.
pub type Result<T> = std::result::Result<T, Error>;

/// Without what libraries put around it on further lines.
fn first_line(error: &object_store::Error) -> String {
    let text = error.to_string();
    // An answer in XML says no more than its number.
    let text = text.split("<?xml").next().unwrap_or_default();
    text.lines().next().unwrap_or_default().trim_end_matches(['.', ' ', ':']).to_owned()
}

/// Where machines in a provider's cloud are given credentials: whoever finds none elsewhere is sent there.
const METADATA: &str = "169.254.169.254";
/// How stores, and the library where a store has no words, say that a bucket is in another region.
const REGION: [&str; 4] =
    ["PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint", "incorrectly configured region"];

/// How stores say that somebody is not who he says, or nobody they know.
const OTHERS: [&str; 5] =
    ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "Missing AccessKey", "AuthenticationFailed"];

/// What a person can do about it, if that is known. The object is called by its URL.
fn hint(object: &str, error: &object_store::Error) -> String {
    // What the network or the certificate's check said is a source of a source.
    let all = iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    let text: String = all.map(|error| format!("{error}\n")).collect();
    let hint = known(error, &text);
    let more = match hint {
        // What is wrong with it, only the innermost one says.
        CERTIFICATE => text.lines().rfind(|line| line.contains("certificate")),
        NO_KEYS | OTHER_KEYS | NO_ACCOUNT => Some(keys(object)),
        _ => None,
    };
    more.map_or_else(|| hint.to_owned(), |more| format!("{hint} ({more})"))
}

/// Where the credentials for a store are looked for.
fn keys(object: &str) -> &'static str {
    match object.split(':').next().unwrap_or_default() {
        "gs" => "GOOGLE_APPLICATION_CREDENTIALS in the environment, or those of gcloud",
        "az" | "azure" | "adl" | "abfs" | "abfss" => {
            "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in the environment, and their like"
        }
        _ => "AWS_ACCESS_KEY_ID in the environment, or ~/.aws/credentials",
    }
}

const NO_KEYS: &str = "; no credentials were found";
const OTHER_KEYS: &str = "; look at the credentials";
const NO_ACCOUNT: &str = "; the account is not known";

const CERTIFICATE: &str = "; the store's certificate is not trusted by this machine";

fn known(error: &object_store::Error, text: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&["RequestTimeTooSkewed"]) {
        "; the clock of this machine is wrong"
    } else if says(&[METADATA]) {
        NO_KEYS
    } else if says(&["Account must be specified"]) {
        NO_ACCOUNT
    } else if says(&OTHERS) || matches!(error, object_store::Error::Unauthenticated { .. }) {
        OTHER_KEYS
    } else if matches!(error, object_store::Error::PermissionDenied { .. }) || says(&["AccessDenied"]) {
        "; these credentials may not do that here"
    } else if says(&["x-amz-checksum", "x-amz-sdk-checksum"]) {
        "; this store takes no checksum of what is put (AWS_CHECKSUM_ALGORITHM=none in the environment)"
    } else if says(&["NoSuchBucket", "ContainerNotFound"]) {
        "; the bucket is not there"
    } else if says(&REGION) {
        "; the bucket is in another region (--region)"
    } else if says(&["certificate", "UnknownIssuer"]) {
        CERTIFICATE
    } else if says(&["HTTP error: error sending request", "dns error", "Connection refused"]) {
        "; the store cannot be reached"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str, #[source] Option<Box<Said>>);

    /// What counts is said at any depth.
    #[test]
    fn whoever_can_mend_it_is_told_how() {
        let cannot = |said| {
            Said("HTTP error: error sending request", Some(Box::new(Said("client error", Some(Box::new(said))))))
        };
        for (said, expected) in [
            ("invalid peer certificate: UnknownIssuer", "certificate is not trusted"),
            ("invalid peer certificate: Expired", "(invalid peer certificate: Expired)"),
            ("tcp connect error: Connection refused (os error 111)", "cannot be reached"),
            (
                "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
                "--region",
            ),
            ("error sending request for url (http://169.254.169.254/latest/api/token)", "no credentials were found"),
            ("<Code>RequestTimeTooSkewed</Code>", "clock"),
            ("<Code>NoSuchBucket</Code>", "bucket is not there"),
            ("<Code>ContainerNotFound</Code>", "bucket is not there"),
            ("Unsupported header 'x-amz-checksum-sha256' received for this API call", "AWS_CHECKSUM_ALGORITHM=none"),
        ] {
            let source = object_store::Error::Generic { store: "S3", source: Box::new(cannot(Said(said, None))) };
            let error = Error::Store { object: "s3://bucket/x".into(), what: "put", source }.to_string();
            assert!(error.contains(expected), "{said}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    /// Nobody is sent to the variables of another provider.
    #[test]
    fn whoever_has_no_credentials_is_told_those_of_the_store() {
        for (url, expected) in [
            ("s3://bucket/x", "AWS_ACCESS_KEY_ID"),
            ("gs://bucket/x", "GOOGLE_APPLICATION_CREDENTIALS"),
            ("az://container/x", "AZURE_STORAGE_ACCOUNT_KEY"),
        ] {
            for said in ["sent to http://169.254.169.254/", "Account must be specified", "<Code>AuthenticationFailed"] {
                let source = object_store::Error::Generic { store: "any", source: Box::new(Said(said, None)) };
                let error = Error::Store { object: url.into(), what: "put", source }.to_string();
                assert!(error.contains(expected), "{said}: {error}");
            }
        }
    }
}
