//! An object store, opened by its URL.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures_util::TryStreamExt;
use nestor_recipe::input_error;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::{Path, PathPart};
use object_store::{BackoffConfig, ClientOptions, Error, ObjectStore, ObjectStoreExt, ObjectStoreScheme, RetryConfig};
use percent_encoding::percent_decode_str;
use url::Url;

/// Time of one request, a part of an upload included.
const REQUEST: Duration = Duration::from_secs(120);
/// Time in which a request is repeated.
const RETRIES: Duration = Duration::from_secs(60);
/// Time of the first contact.
const CONTACT: Duration = Duration::from_secs(60);

/// A folder of an object store.
#[derive(Clone)]
pub struct Store {
    pub(crate) url: String,
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// Uploads that another process can continue; none for a folder.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
    prefix: Path,
}

impl Debug for Store {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.debug_tuple("Store").field(&self.url).finish()
    }
}

impl Store {
    /// Opens the store that a URL names, with credentials of the environment. Asks nothing of it yet.
    ///
    /// # Errors
    /// An `InputError` for a URL or variables that name no store.
    pub fn open(url: &str) -> Result<Self> {
        let refused = |why: String| input_error!("recipe key `checkpoint.mirror`: {url}: {why}");
        let parsed = Url::parse(url).map_err(|error| refused(format!("{error}; {FORMS}")))?;
        if !parsed.username().is_empty() && parsed.scheme() != "abfss" || parsed.password().is_some() {
            return Err(refused("a recipe holds no credentials: set the store's variables in the environment".into()));
        }
        let (scheme, prefix) =
            ObjectStoreScheme::parse(&parsed).map_err(|error| refused(format!("{error}; {FORMS}")))?;
        // One provider of cryptography for the whole process; a second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = ClientOptions::new().with_timeout(REQUEST);
        let retry = RetryConfig {
            backoff: BackoffConfig { max_backoff: Duration::from_secs(5), ..BackoffConfig::default() },
            retry_timeout: RETRIES,
            ..RetryConfig::default()
        };
        let (objects, parts): (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>) = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let builder = AmazonS3Builder::from_env().with_url(url);
                // Whoever names an endpoint without TLS means it: a store on the same network.
                let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
                let client = client.with_allow_http(endpoint.is_some_and(|url| url.starts_with("http://")));
                let builder = builder.with_client_options(client).with_retry(retry);
                // The store compares what it received, part by part.
                let builder = match builder.get_config_value(&AmazonS3ConfigKey::Checksum) {
                    None => builder.with_checksum_algorithm(Checksum::SHA256),
                    Some(_) => builder,
                };
                let store = Arc::new(builder.build().map_err(|error| refused(error.to_string()))?);
                (store.clone(), Some(store))
            }
            ObjectStoreScheme::GoogleCloudStorage => {
                let builder = GoogleCloudStorageBuilder::from_env().with_url(url);
                let builder = builder.with_client_options(client).with_retry(retry);
                let store = Arc::new(builder.build().map_err(|error| refused(error.to_string()))?);
                (store.clone(), Some(store))
            }
            ObjectStoreScheme::MicrosoftAzure => {
                let builder = MicrosoftAzureBuilder::from_env().with_url(url);
                let builder = builder.with_client_options(client).with_retry(retry);
                let store = Arc::new(builder.build().map_err(|error| refused(error.to_string()))?);
                (store.clone(), Some(store))
            }
            ObjectStoreScheme::Local => (Arc::new(LocalFileSystem::new().with_automatic_cleanup(true)), None),
            _ => return Err(refused(FORMS.into())),
        };
        Ok(Self { url: url.trim_end_matches('/').into(), objects, parts, prefix })
    }

    #[cfg(test)]
    pub(crate) fn of_memory(memory: Arc<object_store::memory::InMemory>) -> Self {
        Self { url: "memory:".into(), objects: memory.clone(), parts: Some(memory), prefix: Path::default() }
    }

    /// The object of a name below this folder.
    pub(crate) fn key(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// The objects below this folder, with their sizes. Names are relative to it.
    pub(crate) async fn list(&self) -> Result<Vec<(String, u64)>> {
        let found: Vec<_> = self
            .objects
            .list(Some(&self.prefix))
            .try_collect()
            .await
            .map_err(told)
            .with_context(|| format!("listing {}", self.url))?;
        // Characters that some stores do not take are encoded in keys.
        let decoded = |part: PathPart| percent_decode_str(part.as_ref()).decode_utf8_lossy().into_owned();
        let name = |path: &Path| {
            let parts = path.prefix_match(&self.prefix)?;
            Some(parts.map(decoded).collect::<Vec<_>>().join("/"))
        };
        Ok(found.iter().filter_map(|object| Some((name(&object.location)?, object.size))).collect())
    }

    /// The bytes of a small object; none where there is none.
    pub(crate) async fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let context = || format!("reading {}/{name}", self.url);
        match self.objects.get(&self.key(name)).await {
            Ok(found) => Ok(Some(found.bytes().await.map_err(told).with_context(context)?.to_vec())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(told(error)).with_context(context),
        }
    }

    pub(crate) async fn write(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let written = self.objects.put(&self.key(name), bytes.into()).await;
        written.map(drop).map_err(told).with_context(|| format!("writing {}/{name}", self.url))
    }

    /// Removes an object; one that is gone already is no error.
    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        match self.objects.delete(&self.key(name)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(told(error)).with_context(|| format!("removing {}/{name}", self.url)),
        }
    }

    /// The name of the newest whole checkpoint in the store; none where it holds no run. The first contact with the store.
    ///
    /// # Errors
    /// An `InputError` where the store refuses: no such bucket, wrong or missing credentials. Others mean that it cannot be reached.
    pub fn latest(&self) -> Result<Option<String>> {
        block_on(async {
            let first = async {
                match self.objects.get(&self.key(crate::LATEST)).await {
                    Ok(found) => Ok(Some(found.bytes().await?)),
                    // The object is missing, or the bucket, which is an error of a list.
                    Err(Error::NotFound { .. }) => {
                        self.objects.list_with_delimiter(Some(&self.prefix)).await.map(|_| None)
                    }
                    Err(error) => Err(error),
                }
            };
            let answer = tokio::time::timeout(CONTACT, first).await;
            let answer = answer.with_context(|| format!("{}: no answer in {} s", self.url, CONTACT.as_secs()))?;
            let name = answer.map_err(|error| self.refusal(error))?;
            Ok(name.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_string()))
        })
    }

    /// An error of the first contact: the user's, where the store answered and refused.
    fn refusal(&self, error: Error) -> anyhow::Error {
        let url = &self.url;
        match error {
            Error::NotFound { .. } => {
                input_error!("recipe key `checkpoint.mirror`: {url}: there is no such bucket: make it, or name another")
            }
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => input_error!(
                "recipe key `checkpoint.mirror`: {url}: the store refuses these credentials: set its variables in the environment \
                 (docs/mirror.md)"
            ),
            error => told(error).context(format!("the mirror {url} cannot be reached")),
        }
    }
}

/// An error of a store as one message. Its sources repeat parts of it.
pub(crate) fn told(error: Error) -> anyhow::Error {
    anyhow!("{error}")
}

/// The URLs that name a store.
const FORMS: &str =
    "name a folder of a store as s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER or file:///FOLDER";

/// Runs a future to its end on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
    runtime.block_on(future)
}
