//! What every plugin promises, tested for this one.

hg_na_conformance::suite!(hg_na_sm::SmPlugin, "sm://", named = "sm://conformance-{}");
