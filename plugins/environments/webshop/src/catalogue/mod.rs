//! The catalogue of products.

pub mod files;
pub mod product;
