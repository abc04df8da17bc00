//! What a server answers, as a frame.

use std::borrow::Cow;

use super::fields::{Known, RESPONSE, text_of};
use super::token::{Reader, Value, push_long};
use super::{Field, HEAD_BYTES, InvalidFrame, Reason, swapped};
use crate::header;

/// An answer by what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response<'a> {
    /// Status of HTTP.
    pub status: u16,
    /// The client's id of the request, in the order of bytes that it is written in.
    pub activity_id: [u8; 16],
    /// The headers it has elsewhere, those that frames know.
    pub fields: Vec<Field<'a>>,
    /// Its body; none is empty.
    pub body: &'a [u8],
}

impl<'a> Response<'a> {
    /// The frame. Headers that frames do not know, and values that are none of their header's, are left out.
    ///
    /// # Errors
    /// When a value is too long for a frame.
    pub fn encode(&self) -> Result<Vec<u8>, InvalidFrame> {
        let texts: usize = self.fields.iter().map(|(_, text)| text.len() + 5).sum();
        let mut frame = Vec::with_capacity(HEAD_BYTES + texts + self.body.len() + 16);
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(&u32::from(self.status).to_le_bytes());
        frame.extend_from_slice(&swapped(self.activity_id));
        Value::Byte((!self.body.is_empty()).into()).write(PAYLOAD_PRESENT, &mut frame)?;
        let range = text_of(&self.fields, header::PARTITION_KEY_RANGE_ID);
        for Known { id, form, header } in RESPONSE {
            let text = text_of(&self.fields, header);
            // The range has a token of its own.
            let text =
                if header == header::SESSION_TOKEN { text.map(|text| without(text, range)) } else { text };
            if let Some(value) = text.and_then(|text| form.value(text)) {
                value.write(id, &mut frame)?;
            }
        }
        let length = u32::try_from(frame.len()).map_err(|_| InvalidFrame::new(0, Reason::TooLong))?;
        frame[..4].copy_from_slice(&length.to_le_bytes());
        if !self.body.is_empty() {
            push_long(self.body, &mut frame)?;
        }
        Ok(frame)
    }

    /// Reads a frame. What follows it is not looked at.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, InvalidFrame> {
        let mut reader = Reader::new(bytes);
        let mut head = reader.head()?;
        let status = u16::try_from(head.u32()?).ok().filter(|status| (100..600).contains(status));
        let status = status.ok_or_else(|| head.wrong(Reason::Status))?;
        let activity_id = swapped(head.id()?);
        let mut fields: Vec<Field<'a>> = Vec::with_capacity(FIELDS_USUAL);
        let (mut has_body, mut seen) = (None, 0_u32);
        while !head.is_empty() {
            let (id, value) = head.token()?;
            if id == PAYLOAD_PRESENT {
                if has_body.is_some() {
                    return Err(head.wrong(Reason::Repeated));
                }
                has_body = Some(value.byte().ok_or_else(|| head.wrong(Reason::TokenValue))? != 0);
                continue;
            }
            let Some(index) = RESPONSE.iter().position(|known| known.id == id) else { continue };
            if seen & (1 << index) != 0 {
                return Err(head.wrong(Reason::Repeated));
            }
            seen |= 1 << index;
            let Known { form, header, .. } = RESPONSE[index];
            match form.text(&value) {
                Some(Some(text)) => fields.push((header, text)),
                None if DECISIVE.contains(&header) => return Err(head.wrong(Reason::TokenValue)),
                // It only informs: the answer is as good without it.
                Some(None) | None => {}
            }
        }
        let body = if has_body == Some(true) {
            let length = reader.u32()? as usize;
            reader.take(length)?
        } else {
            &[]
        };
        name_range(&mut fields);
        Ok(Self { status, activity_id, fields, body })
    }
}

/// A session token of one range without the range.
fn without<'t>(token: &'t str, range: Option<&str>) -> &'t str {
    range
        .filter(|_| !token.contains(','))
        .and_then(|range| token.strip_prefix(range)?.strip_prefix(':'))
        .unwrap_or(token)
}

/// Gives a session token its range back.
fn name_range(fields: &mut [Field<'_>]) {
    let Some(range) = text_of(fields, header::PARTITION_KEY_RANGE_ID).map(str::to_owned) else { return };
    let token = fields.iter_mut().find(|(name, _)| *name == header::SESSION_TOKEN);
    if let Some((_, token)) = token.filter(|(_, token)| !token.contains(':')) {
        *token = Cow::Owned(format!("{range}:{token}"));
    }
}

const PAYLOAD_PRESENT: u16 = 0x0000;
/// What clients act on.
const DECISIVE: [&str; 7] = [
    header::CONTINUATION,
    header::ETAG,
    header::RETRY_AFTER_MS,
    header::REQUEST_CHARGE,
    header::SUBSTATUS,
    header::PARTITION_KEY_RANGE_ID,
    header::SESSION_TOKEN,
];
/// Room for the headers of an answer about an item.
const FIELDS_USUAL: usize = 24;
