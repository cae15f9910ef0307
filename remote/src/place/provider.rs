//! The stores of providers, with the keys that their own tools find.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{ClientOptions, ObjectStore, ObjectStoreScheme, Result, RetryConfig};
use url::Url;

use crate::place::access::Access;

/// For so long after its beginning what failed is tried again.
const RETRIED: Duration = Duration::from_secs(180);

/// The store of a provider. What fails is tried again, but nobody waits for minutes to hear that a store is not
/// reached. How long a request may take is not for the library to say: it would give each the same time, whatever its
/// length (`time_for`).
macro_rules! store {
    ($builder:ty, $url:expr, $options:expr) => {{
        let retry = RetryConfig { max_retries: 5, retry_timeout: RETRIED, ..RetryConfig::default() };
        let options = $options.into_iter();
        let client = ClientOptions::new().with_timeout_disabled();
        let builder = <$builder>::new().with_url($url.to_string()).with_client_options(client);
        let builder = options.fold(builder, |builder, (key, value)| match key.parse() {
            Ok(key) => builder.with_config(key, value),
            Err(_) => builder,
        });
        builder.with_retry(retry).build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
    }};
}

/// The store that a URL of this scheme is in; `None` if no such store is known.
pub fn store(scheme: &ObjectStoreScheme, url: &Url, access: &Access) -> Option<Result<Arc<dyn ObjectStore>>> {
    let options = options(access);
    Some(match scheme {
        ObjectStoreScheme::AmazonS3 => store!(AmazonS3Builder, url, options),
        ObjectStoreScheme::GoogleCloudStorage => store!(GoogleCloudStorageBuilder, url, options),
        ObjectStoreScheme::MicrosoftAzure => store!(MicrosoftAzureBuilder, url, options),
        // One in the memory of this process would be gone with it.
        _ => return None,
    })
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
    if let Some(sse) = &access.sse {
        options.insert("aws_server_side_encryption".into(), sse.clone());
    }
    if let Some(key) = &access.sse_kms_key {
        options.insert("aws_sse_kms_key_id".into(), key.clone());
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
}
