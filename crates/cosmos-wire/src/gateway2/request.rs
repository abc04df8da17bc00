//! What a client asks, as a frame.

use super::fields::{self, Known, MATCH, REQUEST, text_of};
use super::token::{Reader, Value, push_length};
use super::{Field, HEAD_BYTES, InvalidFrame, Reason, swapped};
use crate::header;
use crate::rid::Rid;

/// What is done to documents. Endpoints of this kind serve nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Insert one.
    Create,
    /// Change parts of one.
    Patch,
    /// Read one.
    Read,
    /// Read many, in their order or in that of their changes.
    ReadFeed,
    /// Delete one.
    Delete,
    /// Replace one.
    Replace,
    /// SQL.
    Query,
    /// Insert or replace one.
    Upsert,
    /// Several operations in one body.
    Batch,
    /// The plan of a query.
    QueryPlan,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Create,
        Self::Patch,
        Self::Read,
        Self::ReadFeed,
        Self::Delete,
        Self::Replace,
        Self::Query,
        Self::Upsert,
        Self::Batch,
        Self::QueryPlan,
    ];

    const fn code(self) -> u16 {
        match self {
            Self::Create => 0x0001,
            Self::Patch => 0x0002,
            Self::Read => 0x0003,
            Self::ReadFeed => 0x0004,
            Self::Delete => 0x0005,
            Self::Replace => 0x0006,
            Self::Query => 0x000F,
            Self::Upsert => 0x0013,
            Self::Batch => 0x0025,
            Self::QueryPlan => 0x0042,
        }
    }

    fn of(code: u16) -> Option<Self> {
        // A query has two codes, of which clients send either.
        let code = if code == SQL_QUERY { Self::Query.code() } else { code };
        Self::ALL.into_iter().find(|operation| operation.code() == code)
    }

    /// Its name in [`header::THINCLIENT_OPERATION_TYPE`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "Create",
            Self::Patch => "Patch",
            Self::Read => "Read",
            Self::ReadFeed => "ReadFeed",
            Self::Delete => "Delete",
            Self::Replace => "Replace",
            Self::Query => "Query",
            Self::Upsert => "Upsert",
            Self::Batch => "Batch",
            Self::QueryPlan => "QueryPlan",
        }
    }

    /// The method it has elsewhere, which its signature covers.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Create | Self::Query | Self::Upsert | Self::Batch | Self::QueryPlan => "POST",
            Self::Patch => "PATCH",
            Self::Read | Self::ReadFeed => "GET",
            Self::Delete => "DELETE",
            Self::Replace => "PUT",
        }
    }

    /// Whether it is about one document that has a name already.
    #[must_use]
    pub const fn names_an_item(self) -> bool {
        matches!(self, Self::Patch | Self::Read | Self::Delete | Self::Replace)
    }

    /// The header that its precondition stands for.
    const fn condition(self) -> &'static str {
        match self {
            Self::Read | Self::ReadFeed => header::IF_NONE_MATCH,
            Self::Create
            | Self::Patch
            | Self::Delete
            | Self::Replace
            | Self::Query
            | Self::Upsert
            | Self::Batch
            | Self::QueryPlan => header::IF_MATCH,
        }
    }
}

/// Where in the container a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// To no partition: a plan is made anywhere.
    Anywhere,
    /// To the partition that has this place in the hash space, by the bytes of an [`Epk`](crate::epk::Epk).
    Key(&'a [u8]),
    /// To the part of one partition between two places.
    Range(&'a [u8], &'a [u8]),
}

/// A request by what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// What is asked.
    pub operation: Operation,
    /// The client's id of it, in the order of bytes that it is written in.
    pub activity_id: [u8; 16],
    /// Name of the account.
    pub account: &'a str,
    /// Name of the database, as it is.
    pub database: &'a str,
    /// Name of the container, as it is.
    pub container: &'a str,
    /// Resource id of the container, if it is known.
    pub container_rid: Option<&'a str>,
    /// Id of the item, as it is; of operations that name one.
    pub item: Option<&'a str>,
    /// Where it goes.
    pub place: Place<'a>,
    /// The headers it has elsewhere; only such as frames [carry](super::carries).
    pub fields: Vec<Field<'a>>,
    /// Its body; none and an empty one are two things.
    pub body: Option<&'a [u8]>,
}

impl<'a> Request<'a> {
    /// The frame. Headers that frames do not carry are left out.
    ///
    /// # Errors
    /// When a value is too long for a frame, or none that a frame could carry.
    pub fn encode(&self) -> Result<Vec<u8>, InvalidFrame> {
        let mut frame = self.encode_before_body()?;
        frame.extend_from_slice(self.body.unwrap_or_default());
        Ok(frame)
    }

    /// The frame up to the bytes of the body, which follow as they are.
    ///
    /// # Errors
    /// As [`Request::encode`].
    pub fn encode_before_body(&self) -> Result<Vec<u8>, InvalidFrame> {
        let mut frame = self.encode_head()?;
        if let Some(body) = self.body {
            push_length(body, &mut frame)?;
        }
        Ok(frame)
    }

    fn encode_head(&self) -> Result<Vec<u8>, InvalidFrame> {
        let texts: usize = self.fields.iter().map(|(_, text)| text.len() + 5).sum();
        let mut frame = Vec::with_capacity(HEAD_BYTES + texts + USUAL_BYTES);
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(&DOCUMENT.to_le_bytes());
        frame.extend_from_slice(&self.operation.code().to_le_bytes());
        frame.extend_from_slice(&swapped(self.activity_id));
        // Endpoints look at what they route by first: the order of these is that of other clients.
        match self.place {
            Place::Anywhere => {}
            Place::Key(epk) => Value::Bytes(epk).write(EPK, &mut frame)?,
            Place::Range(min, max) => {
                Value::Bytes(min).write(START_EPK, &mut frame)?;
                Value::Bytes(max).write(END_EPK, &mut frame)?;
            }
        }
        Value::Text(self.account).write(ACCOUNT, &mut frame)?;
        Value::Text(self.database).write(DATABASE, &mut frame)?;
        Value::Text(self.container).write(CONTAINER, &mut frame)?;
        if let Some(rid) = self.container_rid {
            Value::Text(rid).write(CONTAINER_RID, &mut frame)?;
            let number: Rid = rid.parse().map_err(|_| InvalidFrame::new(0, Reason::TokenValue))?;
            Value::Bytes(number.as_bytes()).write(RESOURCE_ID, &mut frame)?;
        }
        Value::Byte(self.body.is_some().into()).write(PAYLOAD_PRESENT, &mut frame)?;
        if let Some(item) = self.item {
            Value::Text(item).write(ITEM, &mut frame)?;
        }
        for Known { id, form, header } in REQUEST {
            if let Some(text) = text_of(&self.fields, header) {
                let value = form.value(text).ok_or(InvalidFrame::new(0, Reason::TokenValue))?;
                value.write(id, &mut frame)?;
            }
        }
        if let Some(etag) = text_of(&self.fields, self.operation.condition()) {
            Value::Text(etag).write(MATCH, &mut frame)?;
        }
        let length = u32::try_from(frame.len()).map_err(|_| InvalidFrame::new(0, Reason::TooLong))?;
        frame[..4].copy_from_slice(&length.to_le_bytes());
        Ok(frame)
    }

    /// Reads a frame. It must be all there is.
    ///
    /// # Errors
    /// When it is not one, or not one that such an endpoint serves.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, InvalidFrame> {
        let mut reader = Reader::new(bytes);
        let mut head = reader.head()?;
        if head.u16()? != DOCUMENT {
            return Err(head.wrong(Reason::Resource));
        }
        let operation = head.u16()?;
        let operation = Operation::of(operation).ok_or_else(|| head.wrong(Reason::Operation))?;
        let activity_id = swapped(head.id()?);
        let mut tokens = Tokens::default();
        while !head.is_empty() {
            let (id, value) = head.token()?;
            tokens.take(id, &value, operation).map_err(|reason| head.wrong(reason))?;
        }
        let body = match (tokens.has_body, reader.is_empty()) {
            (Some(false), true) => None,
            (Some(true), false) => {
                let length = reader.u32()? as usize;
                if length != reader.rest().len() {
                    return Err(reader.wrong(Reason::BodyLength));
                }
                Some(reader.rest())
            }
            (Some(_), _) => return Err(reader.wrong(Reason::BodyPresence)),
            (None, _) => return Err(reader.wrong(Reason::Missing)),
        };
        let missing = || reader.wrong(Reason::Missing);
        let place = match (tokens.epk, tokens.start, tokens.end) {
            (Some(epk), None, None) => Place::Key(epk),
            (None, Some(start), Some(end)) => Place::Range(start, end),
            (None, None, None) => Place::Anywhere,
            (Some(_), _, _) => return Err(reader.wrong(Reason::Forbidden)),
            (None, _, _) => return Err(missing()),
        };
        let item = tokens.item.filter(|item| !item.is_empty());
        if operation.names_an_item() && item.is_none() {
            return Err(missing());
        }
        Ok(Self {
            operation,
            activity_id,
            account: tokens.account.ok_or_else(missing)?,
            database: tokens.database.ok_or_else(missing)?,
            container: tokens.container.ok_or_else(missing)?,
            container_rid: tokens.container_rid,
            item: item.filter(|_| operation.names_an_item()),
            place,
            fields: tokens.fields,
            body,
        })
    }
}

/// The tokens of a request while they are read.
#[derive(Default)]
struct Tokens<'a> {
    has_body: Option<bool>,
    account: Option<&'a str>,
    database: Option<&'a str>,
    container: Option<&'a str>,
    container_rid: Option<&'a str>,
    resource_id: Option<&'a [u8]>,
    item: Option<&'a str>,
    epk: Option<&'a [u8]>,
    start: Option<&'a [u8]>,
    end: Option<&'a [u8]>,
    condition: Option<&'a str>,
    fields: Vec<Field<'a>>,
    /// A bit for each header that was there.
    seen: u32,
}

impl<'a> Tokens<'a> {
    fn take(&mut self, id: u16, value: &Value<'a>, operation: Operation) -> Result<(), Reason> {
        match id {
            PAYLOAD_PRESENT => once(&mut self.has_body, value.byte().map(|byte| byte != 0)),
            ACCOUNT => once(&mut self.account, value.text()),
            DATABASE => once(&mut self.database, value.text()),
            CONTAINER => once(&mut self.container, value.text()),
            CONTAINER_RID => once(&mut self.container_rid, value.text()),
            RESOURCE_ID => once(&mut self.resource_id, value.bytes()),
            ITEM => once(&mut self.item, value.text()),
            EPK => once(&mut self.epk, value.bytes()),
            START_EPK => once(&mut self.start, value.bytes()),
            END_EPK => once(&mut self.end, value.bytes()),
            // Endpoints number requests themselves, and refuse a number that a client chose.
            TRANSPORT_REQUEST_ID => Err(Reason::Forbidden),
            MATCH => {
                once(&mut self.condition, value.text())?;
                self.push(operation.condition(), fields::Form::Text, value)
            }
            _ => {
                let Some(index) = REQUEST.iter().position(|known| known.id == id) else { return Ok(()) };
                if self.seen & (1 << index) != 0 {
                    return Err(Reason::Repeated);
                }
                self.seen |= 1 << index;
                let Known { form, header, .. } = REQUEST[index];
                self.push(header, form, value)
            }
        }
    }

    fn push(&mut self, header: &'static str, form: fields::Form, value: &Value<'a>) -> Result<(), Reason> {
        if let Some(text) = form.text(value).ok_or(Reason::TokenValue)? {
            self.fields.push((header, text));
        }
        Ok(())
    }
}

fn once<T>(place: &mut Option<T>, value: Option<T>) -> Result<(), Reason> {
    if place.is_some() {
        return Err(Reason::Repeated);
    }
    *place = Some(value.ok_or(Reason::TokenValue)?);
    Ok(())
}

/// The kind of resource that documents are.
const DOCUMENT: u16 = 0x0003;
/// The other code of a query.
const SQL_QUERY: u16 = 0x0009;

const RESOURCE_ID: u16 = 0x0000;
const PAYLOAD_PRESENT: u16 = 0x0002;
const DATABASE: u16 = 0x0015;
const CONTAINER: u16 = 0x0016;
const ITEM: u16 = 0x0017;
const CONTAINER_RID: u16 = 0x0035;
const TRANSPORT_REQUEST_ID: u16 = 0x004D;
const EPK: u16 = 0x005A;
const ACCOUNT: u16 = 0x00CE;
const START_EPK: u16 = 0x00D2;
const END_EPK: u16 = 0x00D3;

/// Room for the names, the place and the small tokens of a request.
const USUAL_BYTES: usize = 224;
