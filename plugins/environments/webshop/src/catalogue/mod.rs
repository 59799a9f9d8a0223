//! The catalogue: products, their search index, their prices.

pub mod convert;
pub mod index;
pub mod load;
pub mod store;

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::draw;
use crate::generate::{Generator, Spec};
use crate::product::Product;
use load::{Files, Loader};
use nestor_lucene::Bytes;
use store::Store;

/// Products that can be searched and bought.
pub struct Catalogue {
    /// The products.
    pub store: Store,
    search: nestor_lucene::Index,
    /// Prices by ASIN, if they are given.
    prices: Option<HashMap<String, f64>>,
}

impl Catalogue {
    /// Reads files into memory.
    pub fn read(files: &Files) -> Result<Catalogue> {
        let mut loader = Loader::new(Vec::new());
        files.read(&mut loader, &mut |_| ())?;
        Self::loaded(loader).with_context(|| files.items.display().to_string())
    }

    /// Generates a catalogue in memory.
    pub fn generate(spec: Spec) -> Result<Catalogue> {
        let mut loader = Loader::new(Vec::new());
        for made in Generator::new(spec)?.products() {
            loader.add(&made.item, Some(&made.instruction), &made.human)?;
        }
        Self::loaded(loader)
    }

    fn loaded(loader: Loader<Vec<u8>>) -> Result<Catalogue> {
        let (store, search) = loader.finish()?;
        let (store, search) = (Store::new(Bytes::Owned(store))?, nestor_lucene::Index::from_bytes(search)?);
        Ok(Catalogue { store, search, prices: None })
    }

    /// Takes prices from a file, an object of dollars by ASIN. It must have every product.
    pub fn with_prices(mut self, path: &Path) -> Result<Catalogue> {
        let prices: HashMap<String, f64> = load::whole(path)?;
        for number in 0..self.store.products() {
            let asin = self.store.card(number)?.asin;
            let price = prices.get(asin).with_context(|| format!("{}: product {asin} has no price", path.display()))?;
            ensure!(*price >= 0.0, "{}: product {asin} has the price {price}", path.display());
        }
        self.prices = Some(prices);
        Ok(self)
    }

    /// A product's price in dollars. A price range gives a number in it that depends on the ASIN alone.
    pub fn price(&self, product: &Product<'_>) -> f64 {
        if let Some(price) = self.prices.as_ref().and_then(|prices| prices.get(product.card.asin)) {
            return *price;
        }
        let (low, high) = product.price_range;
        if low == high { low } else { low + (high - low) * draw::fraction("price", &[product.card.asin]) }
    }

    /// The best products for a query, at most `top`.
    pub fn search(&self, query: &str, top: usize) -> Result<Vec<u32>> {
        Ok(self.hits(query, top)?.iter().map(|hit| hit.document).collect())
    }

    /// The best products for a query with their scores.
    pub fn hits(&self, query: &str, top: usize) -> Result<Vec<nestor_lucene::Hit>> {
        self.search.search(query, top)
    }
}
