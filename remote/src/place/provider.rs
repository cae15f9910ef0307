//! The stores of providers, with the keys that their own tools find.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{ClientOptions, ObjectStore, ObjectStoreScheme, Result, RetryConfig};
use url::Url;

use crate::place::access::Access;
use crate::place::profile::Profile;

/// What an endpoint is called in the environment; the last one counts before the others, whatever their order.
const ENDPOINTS: [&str; 3] = ["aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3"];
/// What a region is called there.
const REGIONS: [&str; 2] = ["aws_region", "aws_default_region"];

/// What is said of the bytes of each put, beside its signature, which not all stores compare with them. `none` in the
/// environment is for a store that does not take it.
const CHECKSUM: &str = "aws_checksum_algorithm";

/// For so long after its beginning what failed is tried again.
const RETRIED: Duration = Duration::from_secs(180);

/// What a builder is told, in this order: what is said later counts.
type Options = Vec<(String, String)>;

/// The store of a provider, as it is built. What fails is tried again, but nobody waits for minutes to hear that it is
/// not reached. How long a request may take is not for the library to say: it would give each the same time, whatever
/// its length (`time_for`).
macro_rules! builder {
    ($builder:ty, $url:expr, $options:expr) => {{
        let retry = RetryConfig { max_retries: 5, retry_timeout: RETRIED, ..RetryConfig::default() };
        let client = ClientOptions::new().with_timeout_disabled();
        let builder = <$builder>::new().with_url($url.to_string()).with_client_options(client);
        let builder = $options.into_iter().fold(builder, |builder, (key, value)| match key.parse() {
            Ok(key) => builder.with_config(key, value),
            Err(_) => builder,
        });
        builder.with_retry(retry)
    }};
}

fn shared<T: ObjectStore>(store: Result<T>) -> Result<Arc<dyn ObjectStore>> {
    store.map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
}

/// The store that a URL of this scheme is in; `None` if no such store is known.
pub fn store(scheme: &ObjectStoreScheme, url: &Url, access: &Access) -> Option<Result<Arc<dyn ObjectStore>>> {
    let environment =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let said: Options = environment.map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    let is_said = |name: &str| said.iter().any(|(key, _)| key == name);
    let of = |whose: &str| said.iter().filter(|(name, _)| name.starts_with(whose)).cloned().collect::<Options>();
    Some(match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let profile = Profile::of_user();
            let builder = builder!(AmazonS3Builder, url, amazon(of("aws_"), profile.region(), access));
            let keys = if is_said("aws_access_key_id") { None } else { profile.keys() };
            let builder = match keys {
                Some(keys) => builder.with_credentials(Arc::new(keys)),
                None => builder,
            };
            shared(builder.build())
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let options = elsewhere(of("google_"), access, "google_base_url");
            shared(builder!(GoogleCloudStorageBuilder, url, options).build())
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let options = elsewhere(of("azure_"), access, "azure_endpoint");
            shared(builder!(MicrosoftAzureBuilder, url, options).build())
        }
        // One in the memory of this process would be gone with it.
        _ => return None,
    })
}

/// What the environment says to a store of Amazon's kind, and what was asked for.
fn amazon(mut options: Options, region: Option<String>, access: &Access) -> Options {
    let region = region.filter(|_| !options.iter().any(|(name, _)| REGIONS.contains(&name.as_str())));
    options.extend(region.map(|region| ("aws_region".to_owned(), region)));
    // What was spoiled on its way is refused by a store that looks at this; it costs nothing, as it is signed anyhow.
    if !options.iter().any(|(name, _)| name == CHECKSUM) {
        options.push((CHECKSUM.into(), "sha256".into()));
    }
    options.retain(|(name, value)| name != CHECKSUM || value != "none");
    if access.endpoint.is_some() {
        options.retain(|(name, _)| !ENDPOINTS.contains(&name.as_str()));
    }
    let asked = [
        ("aws_region", &access.region),
        ("aws_server_side_encryption", &access.sse),
        ("aws_sse_kms_key_id", &access.sse_kms_key),
    ];
    options.extend(asked.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))));
    with_http(elsewhere(options, access, ENDPOINTS[0]), &ENDPOINTS)
}

/// Where the store is, if that was asked for. A slash at its end is none of it: not all of the library takes it away.
fn elsewhere(mut options: Options, access: &Access, name: &str) -> Options {
    let endpoint = access.endpoint.as_ref().map(|endpoint| endpoint.trim_end_matches('/').to_owned());
    options.extend(endpoint.map(|endpoint| (name.to_owned(), endpoint)));
    with_http(options, &[name])
}

/// Without TLS where whoever names the endpoint says so.
fn with_http(mut options: Options, endpoints: &[&str]) -> Options {
    let endpoint =
        |(name, value): &(String, String)| endpoints.contains(&name.as_str()) && value.starts_with("http://");
    if options.iter().any(endpoint) {
        options.push(("allow_http".into(), "true".into()));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(said: &[(&str, &str)], region: Option<&str>, access: &Access) -> Options {
        let said = said.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        amazon(said, region.map(str::to_owned), access)
    }

    fn told<'a>(options: &'a Options, name: &str) -> Option<&'a str> {
        options.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// An endpoint that is asked for counts, whatever the environment says, and by whichever name.
    #[test]
    fn what_is_asked_for_counts_before_the_environment() {
        let asked = Access { endpoint: Some("https://asked".into()), region: Some("here".into()), ..Access::default() };
        for name in ENDPOINTS {
            let said = [(name, "http://said"), ("aws_region", "there")];
            let told_of = options(&said, Some("file"), &asked);
            assert_eq!(told_of.iter().filter(|(key, _)| ENDPOINTS.contains(&key.as_str())).count(), 1, "{told_of:?}");
            assert_eq!(
                (told(&told_of, "aws_endpoint"), told(&told_of, "aws_region")),
                (Some("https://asked"), Some("here"))
            );
            assert_eq!(told(&told_of, "allow_http"), None);
            let by_environment = options(&said, Some("file"), &Access::default());
            assert_eq!(
                (told(&by_environment, name), told(&by_environment, "aws_region")),
                (Some("http://said"), Some("there"))
            );
            assert_eq!(told(&by_environment, "allow_http"), Some("true"));
        }
        assert_eq!(told(&options(&[], Some("file"), &Access::default()), "aws_region"), Some("file"));
        for (said, expected) in [(None, Some("sha256")), (Some("crc64nvme"), Some("crc64nvme")), (Some("none"), None)] {
            let said: Vec<(&str, &str)> = said.map(|said| (CHECKSUM, said)).into_iter().collect();
            assert_eq!(told(&options(&said, None, &Access::default()), CHECKSUM), expected);
        }
    }
}
