//! The document: the files under `page/`, joined with a content policy under which nothing else can run or load.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::blocks::block;

const PAGE: &str = include_str!("../page/page.html");
const STYLES: [&str; 5] = [
    include_str!("../page/vendor/uPlot.min.css"),
    include_str!("../page/page.css"),
    include_str!("../page/curves.css"),
    include_str!("../page/rollouts.css"),
    include_str!("../page/pair.css"),
];
/// uPlot is included as published, with its licence before it; our own scripts share one scope.
const UPLOT: &str = include_str!("../page/vendor/uPlot.iife.min.js");
const UPLOT_LICENCE: &str = include_str!("../page/vendor/uPlot.LICENSE");
const SCRIPTS: [&str; 21] = [
    include_str!("../page/js/dom.js"),
    include_str!("../page/js/data.js"),
    include_str!("../page/js/axis.js"),
    include_str!("../page/js/lines.js"),
    include_str!("../page/js/zoom.js"),
    include_str!("../page/js/chart.js"),
    include_str!("../page/js/heat.js"),
    include_str!("../page/js/card.js"),
    include_str!("../page/js/special.js"),
    include_str!("../page/js/large.js"),
    include_str!("../page/js/sections.js"),
    include_str!("../page/js/overview.js"),
    include_str!("../page/js/comparison.js"),
    include_str!("../page/js/curves.js"),
    include_str!("../page/js/diff.js"),
    include_str!("../page/js/episode.js"),
    include_str!("../page/js/pair.js"),
    include_str!("../page/js/rollouts.js"),
    include_str!("../page/js/recipes.js"),
    include_str!("../page/js/live.js"),
    include_str!("../page/js/main.js"),
];

/// The page without its data.
pub(crate) struct PageFrame {
    before_index: String,
    before_blocks: String,
    end: String,
}

impl PageFrame {
    /// The page of a server may connect to it; that of a file connects to nothing.
    pub fn new(served: bool) -> Self {
        let style = STYLES.join("\n");
        let own = SCRIPTS.join("\n");
        let script = format!("/*!\n{UPLOT_LICENCE}*/\n{UPLOT}\n(() => {{\n\"use strict\";\n{own}\n}})();\n");
        let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
        let policy = format!(
            "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'{}",
            hash(&script),
            hash(&style),
            if served { "; connect-src 'self'" } else { "" }
        );
        let page = PAGE.replace("{policy}", &policy);
        let (head, rest) = page.split_once("{style}").unwrap_or((&page, ""));
        let (body, rest) = rest.split_once("{index}").unwrap_or((rest, ""));
        let (scripts, rest) = rest.split_once("{script}").unwrap_or((rest, ""));
        let (blocks, end) = rest.split_once("{blocks}").unwrap_or((rest, ""));
        Self {
            before_index: [head, &style, body].concat(),
            before_blocks: [scripts, &script, blocks].concat(),
            end: end.to_owned(),
        }
    }

    /// Returns the bytes of the page without data.
    pub fn len(&self) -> usize {
        self.before_index.len() + self.before_blocks.len() + self.end.len()
    }

    /// Returns the whole page. The blocks come after the scripts: curves are drawn while the browser still reads them.
    pub fn fill(&self, index: &str, blocks: &str) -> String {
        [&self.before_index, &*block("index", index), &self.before_blocks, blocks, &self.end].concat()
    }
}
