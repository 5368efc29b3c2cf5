//! Who may connect: processes of the same effective user, and of users that a setting lists.
//!
//! Both sides ask, of credentials that the kernel vouches for (`SO_PEERCRED`).

use hg_na::Error;
use nix::unistd::geteuid;

use super::socket::Credentials;

/// Name of the setting: user ids, separated by commas.
pub(crate) const ALLOW_UID: &str = "allow-uid";

/// Users that the setting may list.
pub(crate) const ALLOW_UID_MAX: usize = 64;

/// The users that may connect.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    own: u32,
    others: Vec<u32>,
}

impl Policy {
    /// This process's effective user, and those of the setting where there is one.
    ///
    /// # Errors
    /// [`Error::BadSetting`].
    pub(crate) fn from_setting(value: Option<&str>) -> Result<Self, Error> {
        let others: Vec<u32> =
            value.map_or(Ok(Vec::new()), |list| list.split(',').map(parse_uid).collect())?;
        if others.len() > ALLOW_UID_MAX {
            return Err(bad_setting(format!("it lists more than {ALLOW_UID_MAX} users")));
        }
        Ok(Self { own: geteuid().as_raw(), others })
    }

    /// Whether this process may connect to us.
    ///
    /// # Errors
    /// The sentence for the one who is refused.
    pub(crate) fn check_origin(&self, origin: &Credentials) -> Result<(), String> {
        self.check(origin).map_err(|()| refusal(origin.uid, self.own))
    }

    /// Whether we may connect to this process.
    ///
    /// # Errors
    /// The sentence for our own side.
    pub(crate) fn check_target(&self, target: &Credentials) -> Result<(), String> {
        self.check(target).map_err(|()| refusal(self.own, target.uid))
    }

    fn check(&self, peer: &Credentials) -> Result<(), ()> {
        if peer.uid == self.own || self.others.contains(&peer.uid) { Ok(()) } else { Err(()) }
    }
}

fn refusal(origin: u32, target: u32) -> String {
    format!(
        "user {origin} may not connect to a process of user {target}: give the setting `{ALLOW_UID}` to both, \
         `{origin}` to that process and `{target}` to the one that connects"
    )
}

fn parse_uid(text: &str) -> Result<u32, Error> {
    text.trim().parse().map_err(|_| bad_setting(format!("`{}` is no user id", text.escape_debug())))
}

fn bad_setting(why: String) -> Error {
    Error::BadSetting { name: ALLOW_UID.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Credentials {
        Credentials { pid: 1, uid }
    }

    #[test]
    fn only_the_own_user_may_connect_by_default() {
        let policy = Policy::from_setting(None).unwrap();
        let own = geteuid().as_raw();
        policy.check_origin(&user(own)).unwrap();
        let refused = policy.check_origin(&user(own + 1)).unwrap_err();
        let target = policy.check_target(&user(own + 1)).unwrap_err();
        let says = |said: &str, one, other| {
            said.starts_with(&format!("user {one} may not connect to a process of user {other}: "))
        };
        assert!(says(&refused, own + 1, own) && says(&target, own, own + 1), "{refused} {target}");
    }

    #[test]
    fn listed_users_may_connect_too() {
        let own = geteuid().as_raw();
        let list = format!("{}, {}", own + 1, own + 2);
        let policy = Policy::from_setting(Some(&list)).unwrap();
        for uid in own..=own + 2 {
            policy.check_origin(&user(uid)).unwrap();
        }
        policy.check_origin(&user(own + 3)).unwrap_err();
    }

    #[test]
    fn a_list_that_is_none_is_refused() {
        for list in ["", "root", "1,,2", "-1", "4294967296", &"1,".repeat(65)] {
            let refused = Policy::from_setting(Some(list));
            assert!(matches!(refused, Err(Error::BadSetting { .. })), "{list}");
        }
        assert!(Policy::from_setting(Some(&vec!["1"; 65].join(","))).is_err());
    }
}
