//! Addresses: `visor://NAME/CONTEXT@NODE`, where NAME is an application's at the daemon of NODE, and NODE the daemon's own
//! address in the network, or those in all its networks with `~` between them. A URL that is opened is `visor://` or `visor://NAME`.

use hg_na::{Address, Error};

/// The scheme.
pub(crate) const SCHEME: &str = "visor";
/// Between a daemon's addresses.
const AND: char = '~';
/// Longest name in bytes.
pub(crate) const NAME_MAX: usize = 64;

/// One context of an application.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// `NAME/CONTEXT`.
    pub(crate) name: String,
    /// The daemon's address in the network, or several.
    pub(crate) node: Address,
}

impl Target {
    /// # Errors
    /// [`Error::BadAddress`] with what is wrong.
    pub(crate) fn parse(address: &Address) -> Result<Self, Error> {
        let bad = |why: &str| bad(address, why);
        if address.scheme() != SCHEME {
            return Err(bad("this engine reaches visor:// only"));
        }
        let (name, node) = address.rest().split_once('@').ok_or_else(|| {
            bad("it needs the form visor://NAME/CONTEXT@NODE, as an application is told by its daemon")
        })?;
        if !is_full_name(name) {
            return Err(bad("before the @ stands NAME/CONTEXT"));
        }
        nodes(node).try_for_each(|node| node.map(drop))?;
        Ok(Self { name: name.to_owned(), node: Address::new(node)? })
    }

    /// The daemon's addresses, each in one of its networks.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Address> {
        nodes(self.node.as_str()).filter_map(Result::ok)
    }

    /// The text.
    ///
    /// # Errors
    /// [`Error::BadAddress`] when it is too long.
    pub(crate) fn address(&self) -> Result<Address, Error> {
        Address::new(&format!("{SCHEME}://{}@{}", self.name, self.node))
    }

    /// The address of another context of the same application.
    pub(crate) fn beside(&self, context: u8) -> Option<Address> {
        let (name, _) = self.name.split_once('/')?;
        Self { name: full_name(name, context), node: self.node.clone() }.address().ok()
    }
}

fn nodes(text: &str) -> impl Iterator<Item = Result<Address, Error>> {
    text.split(AND).map(Address::new)
}

/// A daemon's addresses together, as its applications' have them.
///
/// # Errors
/// [`Error::BadAddress`]: one has a `~` in it, or the address of an application with the longest name would be too long.
pub(crate) fn node_of(own: &[&Address]) -> Result<Address, Error> {
    if let Some(wrong) = own.iter().find(|it| it.as_str().contains(AND)) {
        return Err(bad(wrong, "a daemon's address has no '~', which stands between several"));
    }
    let all: Vec<&str> = own.iter().map(|it| it.as_str()).collect();
    let node = Address::new(&all.join(&AND.to_string()))?;
    let target = Target { name: full_name(&"n".repeat(NAME_MAX), u8::MAX), node };
    if target.address().is_err() {
        let why = "it is too long for addresses of applications, which name it: fewer networks are shorter";
        return Err(bad(&target.node, why));
    }
    Ok(target.node)
}

/// The name that a URL asks for, if any.
///
/// # Errors
/// [`Error::BadAddress`] with what is wrong.
pub(crate) fn asked_name(url: &Address) -> Result<Option<&str>, Error> {
    match url.rest() {
        _ if url.scheme() != SCHEME => Err(bad(url, "this plugin opens visor:// only")),
        "" => Ok(None),
        name if is_name(name) => Ok(Some(name)),
        _ => Err(bad(url, "a name takes 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")),
    }
}

/// The name of one context.
pub(crate) fn full_name(name: &str, context: u8) -> String {
    format!("{name}/{context}")
}

/// Whether it is `NAME/CONTEXT`, in its one spelling.
pub(crate) fn is_full_name(text: &str) -> bool {
    text.split_once('/').is_some_and(|(name, context)| {
        is_name(name) && context.parse::<u8>().is_ok_and(|number| number.to_string() == context)
    })
}

fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.len() <= NAME_MAX && text.bytes().all(allowed)
}

fn bad(address: &Address, why: &str) -> Error {
    Error::BadAddress { address: address.as_str().to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_their_text_and_others_are_refused() {
        let address = Address::new("visor://a.b/3@tcp://[::1]:7").unwrap();
        let target = Target::parse(&address).unwrap();
        assert_eq!((target.name.as_str(), target.node.as_str()), ("a.b/3", "tcp://[::1]:7"));
        assert_eq!(target.address().unwrap(), address);
        assert_eq!(target.beside(7).unwrap().as_str(), "visor://a.b/7@tcp://[::1]:7");
        assert_eq!(target.nodes().count(), 1);
        let address = Address::new("visor://a/3@tcp://x~verbs://a@b,c@d").unwrap();
        let target = Target::parse(&address).unwrap();
        let nodes: Vec<_> = target.nodes().map(|it| it.to_string()).collect();
        assert_eq!(nodes, ["tcp://x", "verbs://a@b,c@d"]);
        assert_eq!(target.address().unwrap(), address);
        for wrong in [
            "visor://",
            "visor://a@tcp://x",
            "visor://a/03@tcp://x",
            "visor://a/3@x",
            "visor://a/3@tcp://x~",
            "visor://a/3@tcp://x~y",
            "visor:///3@tcp://x",
            "visor://a/256@tcp://x",
            "sm://a/3@tcp://x",
            "visor://a/b/3@tcp://x",
        ] {
            assert!(Target::parse(&Address::new(wrong).unwrap()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_url_names_an_application_or_none() {
        let of =
            |text: &str| asked_name(&Address::new(text).unwrap()).map(|it| it.map(str::to_owned));
        assert_eq!(of("visor://").unwrap(), None);
        assert_eq!(of("visor://a-1").unwrap().as_deref(), Some("a-1"));
        assert!(
            of("visor://a/0").is_err()
                && of("visor://a@tcp://x").is_err()
                && of("tcp://a").is_err()
        );
    }
}
