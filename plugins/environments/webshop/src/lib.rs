//! WebShop: buy the product that an instruction describes, by searching and clicking in a catalogue of products. Yao et al.
//! 2022, arXiv 2207.01206.

#![forbid(unsafe_code)]

pub mod catalogue;
pub mod goal;
pub mod reward;
