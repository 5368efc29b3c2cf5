//! What a scheme is called here that is written otherwise elsewhere: in capitals, as in Mercury, or without its `ofi+`.

/// What to write instead of a scheme that no transport of this build takes; `known` are those that one takes.
pub(crate) fn advice(scheme: &str, known: &[String]) -> Option<String> {
    let lower = scheme.to_ascii_lowercase();
    if lower == "verbs" && !is_built("verbs") {
        // Mercury's name for libfabric's provider, too.
        let through = known.iter().any(|it| it == "ofi+verbs");
        let through = if through { "; `ofi+verbs://` goes through libfabric" } else { "" };
        return Some(format!("{}{through}", without("verbs")));
    }
    // Mercury names the layer above the provider, too, as in `ofi+verbs;ofi_rxm`.
    let plain = lower.split(';').next().unwrap_or(&lower);
    let transport = plain.strip_prefix("na+").unwrap_or(plain);
    let of_libfabric = format!("ofi+{transport}");
    let elsewhere = MERCURY.iter().find(|(theirs, _)| *theirs == plain).map(|(_, ours)| *ours);
    let candidates = [plain, transport, &of_libfabric].into_iter().chain(elsewhere);
    let is_known = |name: &&str| known.iter().any(|known| known == name);
    if let Some(meant) = candidates.clone().find(is_known) {
        return Some(format!("write `{meant}://` instead"));
    }
    let lacking = |name: &str| {
        let is_meant = |prefix: &str| {
            name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || prefix.ends_with('+'))
        };
        let lacking = |it: &&(&str, &str)| is_meant(it.0) && !is_built(it.1);
        FEATURES.iter().find(lacking).map(|(_, feature)| *feature)
    };
    // Not every name is one of libfabric's: only those that the feature would bring.
    let is_named = |name: &&str| *name != of_libfabric || PROVIDERS.contains(&transport);
    candidates.filter(is_named).find_map(lacking).map(without)
}

fn without(feature: &str) -> String {
    format!("this build is without the feature `{feature}` of `hydrargyrum`")
}

/// Whether this build has a feature.
fn is_built(feature: &str) -> bool {
    match feature {
        "sm" => cfg!(feature = "sm"),
        "tcp" => cfg!(feature = "tcp"),
        "ofi" => cfg!(feature = "ofi"),
        "visor" => cfg!(feature = "visor"),
        "verbs" => cfg!(feature = "verbs"),
        _ => cfg!(feature = "sm-routing"),
    }
}

/// Schemes of Mercury's that are not just written otherwise.
const MERCURY: [(&str, &str); 12] = [
    ("bmi+tcp", "tcp"),
    ("mpi+static", "tcp"),
    ("mpi+dynamic", "tcp"),
    ("ucx+all", "ofi+verbs"),
    ("ucx+tcp", "tcp"),
    ("ucx+rc", "ofi+verbs"),
    ("ucx+dc", "ofi+verbs"),
    ("ucx+rc_verbs", "ofi+verbs"),
    ("psm+psm", "ofi+psm2"),
    ("psm2+psm2", "ofi+psm2"),
    ("ofi+psm", "ofi+psm2"),
    ("psm+psm2", "ofi+psm2"),
];

/// What a scheme begins with, and the feature that brings it.
const FEATURES: [(&str, &str); 6] = [
    ("ofi+", "ofi"),
    ("sm+verbs", "verbs"),
    ("sm+", "sm-routing"),
    ("sm", "sm"),
    ("tcp", "tcp"),
    ("visor", "visor"),
];

/// The providers of libfabric that the feature `ofi` brings.
const PROVIDERS: [&str; 12] =
    ["tcp", "shm", "verbs", "cxi", "efa", "psm3", "psm2", "opx", "ucx", "net", "udp", "sockets"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mercury_calls_otherwise_is_named_by_its_name_here() {
        let known = ["sm", "tcp", "ofi+tcp", "ofi+verbs", "ofi+shm", "ofi+psm2"].map(str::to_owned);
        for (theirs, ours) in [
            ("na+sm", "sm"),
            ("NA+SM", "sm"),
            ("SM", "sm"),
            ("ofi+tcp;ofi_rxm", "ofi+tcp"),
            ("ofi+verbs;ofi_rxm", "ofi+verbs"),
            ("OFI+TCP", "ofi+tcp"),
            ("verbs;ofi_rxm", "ofi+verbs"),
            ("shm", "ofi+shm"),
            ("bmi+tcp", "tcp"),
            ("ucx+all", "ofi+verbs"),
            ("psm2+psm2", "ofi+psm2"),
        ] {
            let expected = Some(format!("write `{ours}://` instead"));
            assert_eq!(advice(theirs, &known), expected, "{theirs}");
        }
        for nonsense in ["http", "", "sm+", "tcpx", "ofi"] {
            assert_eq!(advice(nonsense, &known), None, "{nonsense}");
        }
    }

    #[test]
    fn what_this_build_lacks_is_named_by_its_feature() {
        let expected = (!cfg!(feature = "ofi"))
            .then(|| "this build is without the feature `ofi` of `hydrargyrum`".to_owned());
        for brought in ["ofi+tcp", "verbs;ofi_rxm", "na+shm", "ucx+all", "OFI+CXI", "ofi+gni"] {
            assert_eq!(advice(brought, &[]), expected, "{brought}");
        }
        for nonsense in ["foo", "http", "na+foo", "nothing"] {
            assert_eq!(advice(nonsense, &[]), None, "{nonsense}");
        }
    }

    #[test]
    fn verbs_without_libfabric_are_named_by_their_feature() {
        let expected = (!cfg!(feature = "verbs"))
            .then(|| "this build is without the feature `verbs` of `hydrargyrum`".to_owned());
        assert_eq!(advice("verbs", &[]), expected.clone().or_else(|| advice("verbs;ofi_rxm", &[])));
        if cfg!(feature = "sm-routing") {
            assert_eq!(advice("sm+verbs", &[]), expected);
        }
        if let Some(expected) = expected {
            let known = ["ofi+verbs".to_owned()];
            let expected = format!("{expected}; `ofi+verbs://` goes through libfabric");
            assert_eq!(advice("VERBS", &known), Some(expected));
        }
    }

    #[test]
    fn the_daemon_s_scheme_is_named_by_its_feature() {
        let expected = (!cfg!(feature = "visor"))
            .then(|| "this build is without the feature `visor` of `hydrargyrum`".to_owned());
        assert_eq!(advice("visor", &[]), expected);
    }

    #[test]
    #[cfg(feature = "ofi")]
    fn the_providers_are_those_of_the_transport() {
        use hg_na::Plugin as _;
        let named = PROVIDERS.map(|name| format!("ofi+{name}"));
        assert_eq!(hg_na_ofi::OfiPlugin.schemes(), named);
    }
}
