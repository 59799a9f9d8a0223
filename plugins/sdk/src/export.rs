//! The description of a plugin, and the macro that exports it.

use crate::environment::Functions as EnvironmentFunctions;
use crate::estimator::Functions as EstimatorFunctions;
use crate::{Environment, Estimator, Expert, Parts, config, ffi, guard};

/// Exports the components of a plugin crate (`crate-type = ["cdylib", "rlib"]`):
///
/// ```ignore
/// nestor_plugin::export! { environments: [NumberLine + expert], estimators: [Gigpo + parts] }
/// ```
///
/// Write `+ expert` after an environment whose instances implement [`Expert`], `+ parts` after an estimator that
/// implements [`Parts`]. Either list may be omitted.
#[macro_export]
macro_rules! export {
    (environments: [$($env:tt)*] $(,)?) => { $crate::export! { environments: [$($env)*], estimators: [] } };
    (estimators: [$($est:tt)*] $(,)?) => { $crate::export! { environments: [], estimators: [$($est)*] } };
    (environments: [$($env:ident $(+ $expert:ident)?),* $(,)?], estimators: [$($est:ident $(+ $parts:ident)?),* $(,)?]
        $(,)?) => {
        // A panic must become an error of one call, which an abort cannot.
        #[cfg(panic = "abort")]
        compile_error!("a plugin must be built with `panic = \"unwind\"`: the host reports a panic as an error of one call");
        /// The plugin's description; see nestor_plugin.h.
        // SAFETY: the one symbol of this name in the library, as nestor_plugin.h asks.
        #[unsafe(no_mangle)]
        pub extern "C" fn nestor_plugin_entry() -> *const $crate::ffi::Plugin {
            static PLUGIN: std::sync::OnceLock<$crate::ffi::Plugin> = std::sync::OnceLock::new();
            PLUGIN.get_or_init(|| $crate::describe(vec![
                $($crate::export!(@environment $env $($expert)?),)*
                $($crate::export!(@estimator $est $($parts)?),)*
            ]))
        }
    };
    (@environment $env:ident) => { $crate::environment_component::<$env>() };
    (@environment $env:ident expert) => { $crate::expert_component::<$env>() };
    (@estimator $est:ident) => { $crate::estimator_component::<$est>() };
    (@estimator $est:ident parts) => { $crate::parts_component::<$est>() };
}

/// Returns a description of these components that lives as long as the process.
pub fn describe(components: Vec<ffi::Component>) -> ffi::Plugin {
    guard::install_panic_hook();
    let components = Box::leak(components.into_boxed_slice());
    ffi::Plugin { head: ffi::Head::OURS, component_count: components.len() as u64, components: components.as_ptr() }
}

/// Returns an environment's entry in the description.
pub fn environment_component<E: Environment>() -> ffi::Component {
    ffi::Component {
        kind: ffi::ENVIRONMENT,
        id: ffi::Str::new(E::ID.as_bytes()),
        doc: ffi::Str::new(E::DOC.as_bytes()),
        config_schema: leaked(config::schema::<E::Config>()),
        functions: std::ptr::from_ref(EnvironmentFunctions::<E>::TABLE).cast(),
        get_extension: None,
    }
}

/// Returns the entry of an environment with an expert.
pub fn expert_component<E: Environment>() -> ffi::Component
where
    E::Instance: Expert,
{
    ffi::Component { get_extension: Some(EnvironmentFunctions::<E>::expert_extension), ..environment_component::<E>() }
}

/// Returns an estimator's entry in the description.
pub fn estimator_component<E: Estimator>() -> ffi::Component {
    ffi::Component {
        kind: ffi::ESTIMATOR,
        id: ffi::Str::new(E::ID.as_bytes()),
        doc: ffi::Str::new(E::DOC.as_bytes()),
        config_schema: leaked(config::schema::<E::Config>()),
        functions: std::ptr::from_ref(EstimatorFunctions::<E>::TABLE).cast(),
        get_extension: None,
    }
}

/// Returns the entry of an estimator with parts.
pub fn parts_component<E: Parts>() -> ffi::Component {
    ffi::Component { get_extension: Some(EstimatorFunctions::<E>::parts_extension), ..estimator_component::<E>() }
}

fn leaked(text: String) -> ffi::Str {
    ffi::Str::new(Box::leak(text.into_boxed_str()).as_bytes())
}
