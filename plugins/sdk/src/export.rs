//! The description of a plugin, and the macro that exports it.

use std::ffi::c_void;

use crate::environment::Functions as EnvironmentFunctions;
use crate::estimator::Functions as EstimatorFunctions;
use crate::loss::Functions as LossFunctions;
use crate::{Environment, Estimator, Loss, config, ffi, guard};

/// Exports the components of a plugin crate (`crate-type = ["cdylib", "rlib"]`):
///
/// ```ignore
/// nestor_plugin::export! { environments: [NumberLine + expert + snapshot], estimators: [Gigpo + parts] }
/// ```
///
/// After an environment write `+ expert`, `+ snapshot` and `+ respond` where its instances implement [`Expert`](crate::Expert),
/// [`Snapshot`](crate::Snapshot) and [`Respond`](crate::Respond), and `+ images` or `+ messages` where it cannot be played without its images or its messages: a
/// host that does not know them then refuses the plugin. After an estimator write `+ parts`, `+ columns` and `+ state` where it implements
/// [`Parts`](crate::Parts), [`Columns`](crate::Columns) and [`State`](crate::State). Losses ([`Loss`](crate::Loss)) are a third list,
/// `losses: [Holder]`. A list may be omitted.
#[macro_export]
macro_rules! export {
    (environments: [$($env:tt)*] $(, losses: [$($loss:tt)*])? $(,)?) => {
        $crate::export! { environments: [$($env)*], estimators: [], losses: [$($($loss)*)?] }
    };
    (estimators: [$($est:tt)*] $(, losses: [$($loss:tt)*])? $(,)?) => {
        $crate::export! { environments: [], estimators: [$($est)*], losses: [$($($loss)*)?] }
    };
    (losses: [$($loss:tt)*] $(,)?) => { $crate::export! { environments: [], estimators: [], losses: [$($loss)*] } };
    (environments: [$($env:tt)*], estimators: [$($est:tt)*] $(,)?) => {
        $crate::export! { environments: [$($env)*], estimators: [$($est)*], losses: [] }
    };
    (environments: [$($env:ident $(+ $can:ident)*),* $(,)?], estimators: [$($est:ident $(+ $able:ident)*),* $(,)?],
        losses: [$($loss:ident),* $(,)?] $(,)?) => {
        // A panic must become an error of one call, which an abort cannot.
        #[cfg(panic = "abort")]
        compile_error!("a plugin must be built with `panic = \"unwind\"`: the host reports a panic as an error of one call");
        /// The plugin's description; see nestor_plugin.h.
        // SAFETY: the one symbol of this name in the library, as nestor_plugin.h asks.
        #[unsafe(no_mangle)]
        pub extern "C" fn nestor_plugin_entry() -> *const $crate::ffi::Plugin {
            static PLUGIN: std::sync::OnceLock<$crate::ffi::Plugin> = std::sync::OnceLock::new();
            PLUGIN.get_or_init(|| $crate::describe(
                0 $($(.max($crate::export!(@least $can)))*)* $($(.max($crate::export!(@least $able)))*)*
                    $(.max($crate::export!(@least_of_loss $loss)))*,
                vec![
                    $({
                        extern "C" fn extension(id: $crate::ffi::Str) -> *const std::ffi::c_void {
                            $crate::extension(id, &$crate::export!(@tables $env [$($can)*] [$($can)*] []))
                        }
                        $crate::environment_component::<$env>(extension)
                    },)*
                    $({
                        extern "C" fn extension(id: $crate::ffi::Str) -> *const std::ffi::c_void {
                            $crate::extension(id, &$crate::export!(@tables $est [$($able)*] [$($able)*] []))
                        }
                        $crate::estimator_component::<$est>(extension)
                    },)*
                    $($crate::loss_component::<$loss>(),)*
                ],
            ))
        }
    };
    // One table after the other; the list of all abilities goes along, since columns need to know of parts.
    (@tables $of:ident [] $all:tt [$($table:tt)*]) => { [$($table)*] };
    (@tables $of:ident [images $($rest:ident)*] $all:tt $tables:tt) => {
        $crate::export!(@tables $of [$($rest)*] $all $tables)
    };
    (@tables $of:ident [messages $($rest:ident)*] $all:tt $tables:tt) => {
        $crate::export!(@tables $of [$($rest)*] $all $tables)
    };
    (@tables $of:ident [$first:ident $($rest:ident)*] $all:tt [$($table:tt)*]) => {
        $crate::export!(@tables $of [$($rest)*] $all [$($table)* $crate::export!(@table $first $of $all),])
    };
    (@table expert $env:ident $all:tt) => { $crate::table($crate::ffi::EXPERT, $crate::EnvironmentFunctions::<$env>::EXPERT) };
    (@table respond $env:ident $all:tt) => { $crate::table($crate::ffi::RESPOND, $crate::EnvironmentFunctions::<$env>::RESPOND) };
    (@table snapshot $env:ident $all:tt) => {
        $crate::table($crate::ffi::SNAPSHOT, $crate::EnvironmentFunctions::<$env>::SNAPSHOT)
    };
    (@table parts $est:ident $all:tt) => { $crate::table($crate::ffi::PARTS, $crate::EstimatorFunctions::<$est>::PARTS) };
    (@table state $est:ident $all:tt) => {
        $crate::table($crate::ffi::ESTIMATOR_STATE, $crate::EstimatorFunctions::<$est>::STATE)
    };
    (@table columns $est:ident [parts $($rest:ident)*]) => {
        $crate::table($crate::ffi::COLUMNS, $crate::EstimatorFunctions::<$est>::COLUMNS_AND_PARTS)
    };
    (@table columns $est:ident [$other:ident $($rest:ident)*]) => { $crate::export!(@table columns $est [$($rest)*]) };
    (@table columns $est:ident []) => {
        $crate::table($crate::ffi::COLUMNS, $crate::EstimatorFunctions::<$est>::COLUMNS)
    };
    // The least minor version of a host that a component can work with.
    (@least expert) => { 0 };
    (@least snapshot) => { 0 };
    (@least respond) => { 6 };
    (@least images) => { 3 };
    (@least messages) => { 4 };
    (@least columns) => { 2 };
    (@least state) => { 2 };
    (@least parts) => { 0 };
    (@least_of_loss $loss:ident) => { 5 };
}

/// The id of an extension and its table of functions.
pub type Table = (&'static str, *const c_void);

/// Returns an entry of the list that [`extension`] looks in.
pub fn table<T>(id: &'static str, table: &'static T) -> Table {
    (id, std::ptr::from_ref(table).cast())
}

/// Returns the table of an extension; null if the component lacks it.
pub fn extension(id: ffi::Str, tables: &[Table]) -> *const c_void {
    // SAFETY: the host's text, borrowed for the call.
    let id = unsafe { id.bytes() };
    tables.iter().find(|(known, _)| known.as_bytes() == id).map_or(std::ptr::null(), |(_, table)| *table)
}

/// Returns a description of these components that lives as long as the process.
pub fn describe(least_minor: u32, components: Vec<ffi::Component>) -> ffi::Plugin {
    guard::install_panic_hook();
    let components = Box::leak(components.into_boxed_slice());
    let head = ffi::Head { abi_minor: least_minor, ..ffi::Head::OURS };
    ffi::Plugin { head, component_count: components.len() as u64, components: components.as_ptr() }
}

/// Returns an environment's entry in the description.
pub fn environment_component<E: Environment>(extension: Extension) -> ffi::Component {
    ffi::Component {
        kind: ffi::ENVIRONMENT,
        id: ffi::Str::new(E::ID.as_bytes()),
        doc: ffi::Str::new(E::DOC.as_bytes()),
        config_schema: leaked(config::schema::<E::Config>()),
        functions: std::ptr::from_ref(EnvironmentFunctions::<E>::TABLE).cast(),
        get_extension: Some(extension),
    }
}

/// Returns an estimator's entry in the description.
pub fn estimator_component<E: Estimator>(extension: Extension) -> ffi::Component {
    ffi::Component {
        kind: ffi::ESTIMATOR,
        id: ffi::Str::new(E::ID.as_bytes()),
        doc: ffi::Str::new(E::DOC.as_bytes()),
        config_schema: leaked(config::schema::<E::Config>()),
        functions: std::ptr::from_ref(EstimatorFunctions::<E>::TABLE).cast(),
        get_extension: Some(extension),
    }
}

/// Returns a loss's entry in the description. Losses have no extensions.
pub fn loss_component<L: Loss>() -> ffi::Component {
    ffi::Component {
        kind: ffi::LOSS,
        id: ffi::Str::new(L::ID.as_bytes()),
        doc: ffi::Str::new(L::DOC.as_bytes()),
        config_schema: leaked(config::schema::<L::Config>()),
        functions: std::ptr::from_ref(LossFunctions::<L>::TABLE).cast(),
        get_extension: None,
    }
}

type Extension = unsafe extern "C" fn(id: ffi::Str) -> *const c_void;

fn leaked(text: String) -> ffi::Str {
    ffi::Str::new(Box::leak(text.into_boxed_str()).as_bytes())
}
