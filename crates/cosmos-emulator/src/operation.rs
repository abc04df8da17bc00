//! The kinds of requests, as the ledger counts them and fault rules name them.

use serde::{Deserialize, Serialize};

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operation {
    /// `GET /`.
    ReadAccount,
    /// `POST /dbs`.
    CreateDatabase,
    /// `GET /dbs/{db}`.
    ReadDatabase,
    /// `GET /dbs`.
    ListDatabases,
    /// A query over the databases of the account.
    QueryDatabases,
    /// `DELETE /dbs/{db}`.
    DeleteDatabase,
    /// `POST /dbs/{db}/colls`.
    CreateContainer,
    /// `GET /dbs/{db}/colls/{c}`.
    ReadContainer,
    /// `PUT /dbs/{db}/colls/{c}`.
    ReplaceContainer,
    /// `GET /dbs/{db}/colls`.
    ListContainers,
    /// A query over the containers of a database.
    QueryContainers,
    /// `DELETE /dbs/{db}/colls/{c}`.
    DeleteContainer,
    /// `GET /dbs/{db}/colls/{c}/pkranges`.
    ReadRanges,
    /// `GET /offers/{rid}`.
    ReadOffer,
    /// `GET /offers`.
    ListOffers,
    /// A query over the offers of the account.
    QueryOffers,
    /// `PUT /offers/{rid}`.
    ReplaceOffer,
    /// Insert one item.
    CreateItem,
    /// Insert or replace one item.
    UpsertItem,
    /// Read one item.
    ReadItem,
    /// Replace one item.
    ReplaceItem,
    /// Change parts of one item.
    PatchItem,
    /// Delete one item.
    DeleteItem,
    /// Delete every item of a logical partition.
    DeletePartition,
    /// A transactional batch: all or nothing.
    Batch,
    /// A bulk request: independent operations in one body.
    Bulk,
    /// SQL over items.
    Query,
    /// The plan of a query, for clients that fan out.
    QueryPlan,
    /// All items of a container, a range or a logical partition.
    ReadFeed,
    /// Items in the order they changed.
    ChangeFeed,
    /// `POST` of a stored procedure, trigger or user defined function; upserts too.
    CreateScript,
    /// Read one script.
    ReadScript,
    /// Replace one script.
    ReplaceScript,
    /// The scripts of a kind.
    ListScripts,
    /// A query over the scripts of a kind.
    QueryScripts,
    /// Delete one script.
    DeleteScript,
    /// Run a stored procedure.
    ExecuteScript,
    /// `GET /dbs/{db}/colls/{c}/conflicts`, or a query over them.
    ListConflicts,
    /// `GET /dbs/{db}/colls/{c}/conflicts/{id}`.
    ReadConflict,
    /// `DELETE /dbs/{db}/colls/{c}/conflicts/{id}`.
    DeleteConflict,
    /// `POST /dbs/{db}/clientencryptionkeys`.
    CreateEncryptionKey,
    /// `GET /dbs/{db}/clientencryptionkeys/{k}`.
    ReadEncryptionKey,
    /// `PUT /dbs/{db}/clientencryptionkeys/{k}`.
    ReplaceEncryptionKey,
    /// `GET /dbs/{db}/clientencryptionkeys`.
    ListEncryptionKeys,
    /// A query over the client encryption keys of a database.
    QueryEncryptionKeys,
    /// `POST /dbs/{db}/users`; upserts too.
    CreateUser,
    /// `GET /dbs/{db}/users/{u}`.
    ReadUser,
    /// `PUT /dbs/{db}/users/{u}`.
    ReplaceUser,
    /// `GET /dbs/{db}/users`.
    ListUsers,
    /// A query over the users of a database.
    QueryUsers,
    /// `DELETE /dbs/{db}/users/{u}`.
    DeleteUser,
    /// `POST /dbs/{db}/users/{u}/permissions`; upserts too.
    CreatePermission,
    /// `GET /dbs/{db}/users/{u}/permissions/{p}`.
    ReadPermission,
    /// `PUT /dbs/{db}/users/{u}/permissions/{p}`.
    ReplacePermission,
    /// `GET /dbs/{db}/users/{u}/permissions`.
    ListPermissions,
    /// A query over the permissions of a user.
    QueryPermissions,
    /// `DELETE /dbs/{db}/users/{u}/permissions/{p}`.
    DeletePermission,
}

impl Operation {
    /// Every operation, in declaration order.
    pub const ALL: [Self; 57] = [
        Self::ReadAccount,
        Self::CreateDatabase,
        Self::ReadDatabase,
        Self::ListDatabases,
        Self::QueryDatabases,
        Self::DeleteDatabase,
        Self::CreateContainer,
        Self::ReadContainer,
        Self::ReplaceContainer,
        Self::ListContainers,
        Self::QueryContainers,
        Self::DeleteContainer,
        Self::ReadRanges,
        Self::ReadOffer,
        Self::ListOffers,
        Self::QueryOffers,
        Self::ReplaceOffer,
        Self::CreateItem,
        Self::UpsertItem,
        Self::ReadItem,
        Self::ReplaceItem,
        Self::PatchItem,
        Self::DeleteItem,
        Self::DeletePartition,
        Self::Batch,
        Self::Bulk,
        Self::Query,
        Self::QueryPlan,
        Self::ReadFeed,
        Self::ChangeFeed,
        Self::CreateScript,
        Self::ReadScript,
        Self::ReplaceScript,
        Self::ListScripts,
        Self::QueryScripts,
        Self::DeleteScript,
        Self::ExecuteScript,
        Self::ListConflicts,
        Self::ReadConflict,
        Self::DeleteConflict,
        Self::CreateEncryptionKey,
        Self::ReadEncryptionKey,
        Self::ReplaceEncryptionKey,
        Self::ListEncryptionKeys,
        Self::QueryEncryptionKeys,
        Self::CreateUser,
        Self::ReadUser,
        Self::ReplaceUser,
        Self::ListUsers,
        Self::QueryUsers,
        Self::DeleteUser,
        Self::CreatePermission,
        Self::ReadPermission,
        Self::ReplacePermission,
        Self::ListPermissions,
        Self::QueryPermissions,
        Self::DeletePermission,
    ];

    /// The name on the management port, for example `createItem`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadAccount => "readAccount",
            Self::CreateDatabase => "createDatabase",
            Self::ReadDatabase => "readDatabase",
            Self::ListDatabases => "listDatabases",
            Self::QueryDatabases => "queryDatabases",
            Self::DeleteDatabase => "deleteDatabase",
            Self::CreateContainer => "createContainer",
            Self::ReadContainer => "readContainer",
            Self::ReplaceContainer => "replaceContainer",
            Self::ListContainers => "listContainers",
            Self::QueryContainers => "queryContainers",
            Self::DeleteContainer => "deleteContainer",
            Self::ReadRanges => "readRanges",
            Self::ReadOffer => "readOffer",
            Self::ListOffers => "listOffers",
            Self::QueryOffers => "queryOffers",
            Self::ReplaceOffer => "replaceOffer",
            Self::CreateItem => "createItem",
            Self::UpsertItem => "upsertItem",
            Self::ReadItem => "readItem",
            Self::ReplaceItem => "replaceItem",
            Self::PatchItem => "patchItem",
            Self::DeleteItem => "deleteItem",
            Self::DeletePartition => "deletePartition",
            Self::Batch => "batch",
            Self::Bulk => "bulk",
            Self::Query => "query",
            Self::QueryPlan => "queryPlan",
            Self::ReadFeed => "readFeed",
            Self::ChangeFeed => "changeFeed",
            Self::CreateScript => "createScript",
            Self::ReadScript => "readScript",
            Self::ReplaceScript => "replaceScript",
            Self::ListScripts => "listScripts",
            Self::QueryScripts => "queryScripts",
            Self::DeleteScript => "deleteScript",
            Self::ExecuteScript => "executeScript",
            Self::ListConflicts => "listConflicts",
            Self::ReadConflict => "readConflict",
            Self::DeleteConflict => "deleteConflict",
            Self::CreateEncryptionKey => "createEncryptionKey",
            Self::ReadEncryptionKey => "readEncryptionKey",
            Self::ReplaceEncryptionKey => "replaceEncryptionKey",
            Self::ListEncryptionKeys => "listEncryptionKeys",
            Self::QueryEncryptionKeys => "queryEncryptionKeys",
            Self::CreateUser => "createUser",
            Self::ReadUser => "readUser",
            Self::ReplaceUser => "replaceUser",
            Self::ListUsers => "listUsers",
            Self::QueryUsers => "queryUsers",
            Self::DeleteUser => "deleteUser",
            Self::CreatePermission => "createPermission",
            Self::ReadPermission => "readPermission",
            Self::ReplacePermission => "replacePermission",
            Self::ListPermissions => "listPermissions",
            Self::QueryPermissions => "queryPermissions",
            Self::DeletePermission => "deletePermission",
        }
    }

    /// Whether it changes something.
    pub fn is_write(self) -> bool {
        match self {
            Self::CreateDatabase
            | Self::DeleteDatabase
            | Self::CreateContainer
            | Self::ReplaceContainer
            | Self::DeleteContainer
            | Self::ReplaceOffer
            | Self::CreateItem
            | Self::UpsertItem
            | Self::ReplaceItem
            | Self::PatchItem
            | Self::DeleteItem
            | Self::DeletePartition
            | Self::Batch
            | Self::Bulk
            | Self::DeleteConflict
            | Self::CreateScript
            | Self::ReplaceScript
            | Self::DeleteScript
            | Self::ExecuteScript
            | Self::CreateEncryptionKey
            | Self::ReplaceEncryptionKey
            | Self::CreateUser
            | Self::ReplaceUser
            | Self::DeleteUser
            | Self::CreatePermission
            | Self::ReplacePermission
            | Self::DeletePermission => true,
            Self::ReadAccount
            | Self::ReadDatabase
            | Self::ListDatabases
            | Self::QueryDatabases
            | Self::ReadContainer
            | Self::ListContainers
            | Self::QueryContainers
            | Self::ReadRanges
            | Self::ReadOffer
            | Self::ListOffers
            | Self::QueryOffers
            | Self::ReadItem
            | Self::Query
            | Self::QueryPlan
            | Self::ReadFeed
            | Self::ChangeFeed
            | Self::ReadScript
            | Self::ListScripts
            | Self::QueryScripts
            | Self::ListConflicts
            | Self::ReadConflict
            | Self::ReadEncryptionKey
            | Self::ListEncryptionKeys
            | Self::QueryEncryptionKeys
            | Self::ReadUser
            | Self::ListUsers
            | Self::QueryUsers
            | Self::ReadPermission
            | Self::ListPermissions
            | Self::QueryPermissions => false,
        }
    }

    /// Whether its answer carries resource tokens, which may allow more than the key that asks.
    pub(crate) fn shows_tokens(self) -> bool {
        matches!(self, Self::ReadPermission | Self::ListPermissions | Self::QueryPermissions)
    }

    /// Whether it reads items and changes none.
    pub(crate) fn reads_items(self) -> bool {
        matches!(self, Self::ReadItem | Self::Query | Self::ReadFeed | Self::ChangeFeed)
    }

    /// Whether the answer may take long enough that it should not run on a thread that serves sockets.
    pub(crate) fn is_heavy(self) -> bool {
        matches!(
            self,
            Self::DeletePartition
                | Self::Batch
                | Self::Bulk
                | Self::Query
                | Self::ReadFeed
                | Self::ChangeFeed
                | Self::CreateScript
                | Self::ReplaceScript
                | Self::ExecuteScript
                | Self::CreateContainer
                | Self::ReplaceContainer
                | Self::DeleteContainer
                | Self::DeleteDatabase
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_serde_writes_and_all_is_in_declaration_order() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
            assert_eq!(serde_json::to_value(operation).unwrap(), operation.name());
        }
    }
}
