//! Settings that were given while the broker ran, to what is no topic: to groups.
//!
//! Invariants: what is told and in force is stored durably; a holder changes as a whole or not at
//! all; one whose settings are all gone is forgotten.
//! Never: a topic's own settings, which are with the topic.

use crate::node::Node;
use crate::refused::Refused;
use crate::{group_settings, group_settings::Timeouts};
use millstream_log::OtherSettings;
use millstream_protocol::ErrorCode;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Settings by their names.
pub(crate) type Configs = BTreeMap<String, String>;

/// Whose settings they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder<'a> {
    /// The group's of that name; it need not exist.
    Group(&'a str),
}

/// Everything that was given.
#[derive(Debug, Clone, Default)]
pub(crate) struct Given {
    pub(crate) groups: BTreeMap<String, Configs>,
}

/// What counts now.
#[derive(Debug)]
pub(crate) struct Overrides(RwLock<Arc<Given>>);

/// The kind under which the directory keeps the settings of groups.
const GROUP: &str = "group";

impl Holder<'_> {
    /// Kind and name in the directory.
    fn key(self) -> (&'static str, String) {
        match self {
            Holder::Group(name) => (GROUP, name.to_owned()),
        }
    }
}

impl Given {
    fn of(&self, holder: Holder<'_>) -> Configs {
        let known = match holder {
            Holder::Group(name) => self.groups.get(name),
        };
        known.cloned().unwrap_or_default()
    }

    fn set(&mut self, holder: Holder<'_>, configs: Configs) {
        match holder {
            Holder::Group(name) if configs.is_empty() => {
                self.groups.remove(name);
            }
            Holder::Group(name) => {
                self.groups.insert(name.to_owned(), configs);
            }
        }
    }
}

impl Overrides {
    /// What the directory has kept.
    pub(crate) fn stored(stored: OtherSettings) -> Self {
        let mut given = Given::default();
        for ((kind, name), configs) in stored {
            if kind == GROUP {
                given.groups.insert(name, configs);
            }
        }
        Overrides(RwLock::new(Arc::new(given)))
    }

    /// Everything that counts now.
    pub(crate) fn given(&self) -> Arc<Given> {
        let given = self.0.read();
        given.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, holder: Holder<'_>, configs: Configs) {
        let mut given = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut given).set(holder, configs);
    }
}

impl Node {
    /// Gives a holder the settings that `change` makes of its own ones; with `validate_only`
    /// nothing changes. After an error it has those that it had.
    pub(crate) async fn alter_overrides(
        &self,
        holder: Holder<'_>,
        validate_only: bool,
        change: impl FnOnce(&Configs) -> Result<Configs, Refused>,
    ) -> Result<(), Refused> {
        let _one_at_a_time = self.partitions.lock_changes().await;
        let own = self.overrides.given().of(holder);
        let configs = change(&own)?;
        let configs = match holder {
            Holder::Group(_) => group_settings::checked(&configs, &self.config)
                .map_err(|message| Refused::new(ErrorCode::INVALID_CONFIG, message))?,
        };
        if validate_only || configs == own {
            return Ok(());
        }
        let (directory, stored) = (self.directory.clone(), configs.clone());
        let (kind, name) = holder.key();
        let work = move || directory.store_settings(kind, &name, stored);
        let kept = self.config.placement.blocking(work).await;
        let kept = kept.map_err(|error| Refused::failed(error.error_code()))?;
        kept.map_err(|error| {
            tracing::error!(?holder, %error, "settings not changed");
            Refused::failed(error.error_code())
        })?;
        self.overrides.set(holder, configs);
        Ok(())
    }

    /// How long a member of a group may be silent, and how often it is to be heard of.
    pub(crate) fn timeouts_of(&self, group_id: &str) -> Timeouts {
        let given = self.overrides.given();
        Timeouts::new(given.groups.get(group_id), &self.config)
    }
}
