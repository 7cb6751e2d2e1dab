//! Files by URL: objects of stores that speak the protocol of S3, and downloads over HTTP.

mod download;
mod files;
mod keys;

use std::path::Path;
use std::time::Duration;

pub use download::{Download, OnProgress, is_url};
pub use files::{ObjectFiles, ObjectUpload};
pub use keys::explained;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use tokio::runtime::Runtime;

/// Objects of a store below a prefix.
pub struct Bucket {
    /// The store.
    pub store: Box<dyn ObjectStore>,
    /// What the keys start with.
    pub prefix: Key,
    /// Executes requests.
    pub runtime: Runtime,
}

/// Where objects are.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    endpoint: Option<String>,
    bucket: String,
    prefix: String,
}

/// How long a connection to the store may take, and a store may send nothing.
const CONNECT: Duration = Duration::from_secs(10);
const STALL: Duration = Duration::from_secs(60);

/// Whether a path is the URL of objects in a store.
pub fn is_remote(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with("s3://"))
}

impl Bucket {
    /// The objects at `s3://BUCKET/PREFIX`, or at `s3://https://HOST:PORT/BUCKET/PREFIX`. Keys and region come from the variables
    /// `AWS_…` of the environment. Nothing is read yet.
    ///
    /// # Errors
    /// When the URL is malformed, or there is no thread for requests.
    pub fn open(url: &str) -> Result<Bucket, String> {
        let place = place(url)?;
        install_tls();
        let client =
            ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT).with_read_timeout(STALL);
        let retry = RetryConfig { max_retries: 3, retry_timeout: STALL, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::from_env().with_client_options(client).with_retry(retry);
        builder = builder.with_bucket_name(place.bucket);
        if let Some(endpoint) = place.endpoint {
            builder = builder.with_allow_http(endpoint.starts_with("http://")).with_endpoint(endpoint);
        }
        let store = builder.build().map_err(|e| format!("'{url}' cannot be used: {e}"))?;
        let prefix = Key::parse(&place.prefix).map_err(|e| format!("'{url}' cannot be used: {e}"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| format!("no threads for '{url}': {e}"))?;
        Ok(Bucket { store: Box::new(store), prefix, runtime })
    }
}

/// Says what TLS computes with.
fn install_tls() {
    // The first one wins; all are the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn place(url: &str) -> Result<Place, String> {
    let rest = url.strip_prefix("s3://").unwrap_or(url);
    let (endpoint, path) = match rest.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => {
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            (Some(format!("{scheme}://{host}")), path)
        }
        _ => (None, rest),
    };
    let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
    match bucket.is_empty() {
        true => {
            Err(format!("'{url}' names no bucket: write s3://BUCKET/PREFIX or s3://https://HOST:PORT/BUCKET/PREFIX"))
        }
        false => Ok(Place { endpoint, bucket: bucket.into(), prefix: prefix.trim_end_matches('/').into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_bucket_and_perhaps_a_host() {
        let of = |endpoint: Option<&str>, bucket: &str, prefix: &str| Place {
            endpoint: endpoint.map(str::to_owned),
            bucket: bucket.into(),
            prefix: prefix.into(),
        };
        assert_eq!(place("s3://models/a/b/").unwrap(), of(None, "models", "a/b"));
        assert_eq!(place("s3://models").unwrap(), of(None, "models", ""));
        let endpoint = Some("http://127.0.0.1:9000");
        assert_eq!(place("s3://http://127.0.0.1:9000/models/a").unwrap(), of(endpoint, "models", "a"));
        assert!(place("s3://https://host").unwrap_err().contains("names no bucket"));
        assert!(is_remote(Path::new("s3://a")) && !is_remote(Path::new("/s3://a")));
    }
}
