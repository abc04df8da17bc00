use std::borrow::Cow;

use super::fields::{REQUEST, RESPONSE};
use super::token::{Reader, Value};
use super::*;
use crate::header;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hexadecimal"))
        .collect()
}

fn request() -> Request<'static> {
    Request {
        operation: Operation::Read,
        activity_id: *b"\x12\x34\x56\x78\x90\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef",
        account: "acct",
        database: "db",
        container: "c",
        container_rid: None,
        item: Some("1"),
        place: Place::Key(&[1, 2]),
        fields: vec![(header::AUTHORIZATION, "sig".into()), (header::X_DATE, "now".into())],
        body: None,
    }
}

fn reason(result: Result<Request<'_>, InvalidFrame>) -> Option<Reason> {
    result.err().map(|error| error.reason)
}

/// A frame with tokens that are given as bytes.
fn framed(operation: u16, tokens: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut frame = (24 + tokens.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&[3, 0]);
    frame.extend_from_slice(&operation.to_le_bytes());
    frame.extend_from_slice(&[0; 16]);
    frame.extend_from_slice(tokens);
    frame.extend_from_slice(rest);
    frame
}

fn tokens_of(values: &[(u16, Value<'_>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (id, value) in values {
        value.write(*id, &mut bytes).expect("short");
    }
    bytes
}

const NAMES: [(u16, Value<'static>); 3] =
    [(0xCE, Value::Text("a")), (0x15, Value::Text("d")), (0x16, Value::Text("c"))];

/// The frame of the public Rust driver's own snapshot: a read with a page size, and a body.
#[test]
fn a_frame_of_another_client_is_read_byte_by_byte() {
    let frame =
        hex("23000000 0300 0300 78563412ab90efcd0123456789abcdef 04000200010000 02000001 02000000 7b7d");
    let mut reader = Reader::new(&frame);
    let mut head = reader.head().expect("a head");
    assert_eq!((head.u16(), head.u16()), (Ok(3), Ok(3)));
    assert_eq!(swapped(head.id().expect("an id")), request().activity_id);
    assert_eq!(head.token(), Ok((4, Value::ULong(256))));
    assert_eq!(head.token(), Ok((2, Value::Byte(1))));
    assert!(head.is_empty());
    assert_eq!(reader.u32(), Ok(2));
    assert_eq!(reader.rest(), b"{}");
}

#[test]
fn a_request_is_written_as_other_clients_write_it() {
    let frame = request().encode().expect("a frame");
    let expected = hex("5A000000 0300 0300 78563412ab90efcd0123456789abcdef \
         5A00 0B 0200 0102          CE00 08 0400 61636374  1500 08 0200 6462  1600 08 0100 63 \
         0200 00 00                 1700 08 0100 31        0100 08 0300 736967 0300 07 03 6e6f77");
    assert_eq!(frame[4..], expected[4..]);
    assert_eq!(frame[..4], u32::try_from(frame.len()).expect("small").to_le_bytes());
    assert_eq!(Request::decode(&frame), Ok(request()));
}

#[test]
fn ids_have_the_order_of_microsofts_guids() {
    let id = hex("8f3322cc17864db49b97b229c2c6f0aa");
    let id: [u8; 16] = id.try_into().expect("16 bytes");
    assert_eq!(swapped(id).to_vec(), hex("CC22338F8617B44D9B97B229C2C6F0AA"));
    assert_eq!(swapped(swapped(id)), id);
}

#[test]
fn headers_and_tokens_say_the_same() {
    let cases = [
        (header::MAX_ITEM_COUNT, "100", Value::ULong(100), "100"),
        (header::MAX_ITEM_COUNT, "-1", Value::ULong(u32::MAX), "-1"),
        (header::CONSISTENCY_LEVEL, "Strong", Value::Byte(0), "Strong"),
        (header::CONSISTENCY_LEVEL, "BoundedStaleness", Value::Byte(1), "BoundedStaleness"),
        (header::CONSISTENCY_LEVEL, "session", Value::Byte(2), "Session"),
        (header::CONSISTENCY_LEVEL, "Eventual", Value::Byte(3), "Eventual"),
        (header::CONSISTENCY_LEVEL, "ConsistentPrefix", Value::Byte(4), "ConsistentPrefix"),
        (header::READ_CONSISTENCY_STRATEGY, "Eventual", Value::Byte(1), "Eventual"),
        (header::READ_CONSISTENCY_STRATEGY, "GlobalStrong", Value::Byte(4), "GlobalStrong"),
        (
            header::SUPPORTED_SERIALIZATION_FORMATS,
            "JsonText,CosmosBinary",
            Value::Byte(3),
            "JsonText,CosmosBinary",
        ),
        (header::SUPPORTED_SERIALIZATION_FORMATS, "CosmosBinary+UInt64", Value::Byte(2), "CosmosBinary"),
        (header::PREFER, "return=minimal", Value::Byte(1), "return=minimal"),
        (header::ALLOW_TENTATIVE_WRITES, "true", Value::Byte(1), "True"),
        (header::BATCH_ATOMIC, "False", Value::Byte(0), "False"),
        (header::QUERY_VERSION, "1.4", Value::SmallText("1.4"), "1.4"),
        (header::CONTINUATION, "{\"a\":1}", Value::Text("{\"a\":1}"), "{\"a\":1}"),
    ];
    for (name, text, value, back) in cases {
        let form = REQUEST.iter().find(|known| known.header == name).expect("a known header").form;
        assert_eq!(form.value(text), Some(value), "{name}: {text}");
        assert_eq!(form.text(&value), Some(Some(Cow::Borrowed(back))), "{name}: {value:?}");
    }
}

#[test]
fn what_a_token_cannot_say_is_refused_on_both_sides() {
    for (name, text) in [
        (header::MAX_ITEM_COUNT, "many"),
        (header::MAX_ITEM_COUNT, "-2"),
        (header::MAX_ITEM_COUNT, "4294967295"),
        (header::CONSISTENCY_LEVEL, "Best"),
        (header::READ_CONSISTENCY_STRATEGY, "Default"),
        (header::PREFER, "return=representation"),
    ] {
        let request = Request { fields: vec![(name, text.into())], ..request() };
        assert_eq!(request.encode().map_err(|error| error.reason), Err(Reason::TokenValue), "{name}: {text}");
    }
    for (id, value) in [
        (0x10, Value::Byte(5)),
        (0x10, Value::Text("Session")),
        (0xFE, Value::Byte(0)),
        (0xFE, Value::Byte(5)),
        (0x01, Value::Byte(1)),
        (0x01, Value::Text("a\r\nb")),
        (0x04, Value::Text("1")),
        (0x02, Value::Text("1")),
        (0x5A, Value::Text("1")),
        (0x15, Value::Bytes(b"d")),
    ] {
        let tokens = tokens_of(&[(id, value)]);
        assert_eq!(
            reason(Request::decode(&framed(3, &tokens, &[]))),
            Some(Reason::TokenValue),
            "{id:#x} {value:?}"
        );
    }
}

#[test]
fn a_precondition_is_of_the_header_that_its_operation_has() {
    for (operation, name) in [
        (Operation::Read, header::IF_NONE_MATCH),
        (Operation::ReadFeed, header::IF_NONE_MATCH),
        (Operation::Replace, header::IF_MATCH),
        (Operation::Delete, header::IF_MATCH),
        (Operation::Patch, header::IF_MATCH),
        (Operation::Upsert, header::IF_MATCH),
    ] {
        let item = operation.names_an_item().then_some("1");
        let asked = Request { operation, item, fields: vec![(name, "\"e\"".into())], ..request() };
        let frame = asked.encode().expect("a frame");
        assert_eq!(Request::decode(&frame).expect("it is one").fields, [(name, Cow::Borrowed("\"e\""))]);
    }
}

#[test]
fn a_frame_that_contradicts_itself_is_refused() {
    let names = |more: &[(u16, Value<'_>)]| tokens_of(&[&NAMES[..], more].concat());
    let no_body = (2, Value::Byte(0));
    let has_body = (2, Value::Byte(1));
    let item = (0x17, Value::Text("i"));
    let (epk, start, end) =
        ((0x5A, Value::Bytes(b"1")), (0xD2, Value::Bytes(b"")), (0xD3, Value::Bytes(b"\xff")));
    let cases: Vec<(&str, Vec<u8>, Option<Reason>)> = vec![
        ("whole", framed(3, &names(&[no_body, item, epk]), &[]), None),
        ("a query has two codes", framed(9, &names(&[has_body, start, end]), &[0, 0, 0, 0]), None),
        (
            "an unknown token is left out",
            framed(3, &names(&[no_body, item, (0x7777, Value::Guid([0; 16]))]), &[]),
            None,
        ),
        ("no token about a body", framed(3, &names(&[item]), &[]), Some(Reason::Missing)),
        ("no item", framed(3, &names(&[no_body]), &[]), Some(Reason::Missing)),
        ("no names", framed(3, &tokens_of(&[no_body, item]), &[]), Some(Reason::Missing)),
        ("half a range", framed(4, &names(&[no_body, start]), &[]), Some(Reason::Missing)),
        ("a key and a range", framed(4, &names(&[no_body, epk, start, end]), &[]), Some(Reason::Forbidden)),
        (
            "a number of its own",
            framed(3, &names(&[no_body, item, (0x4D, Value::ULong(1))]), &[]),
            Some(Reason::Forbidden),
        ),
        ("a token twice", framed(3, &names(&[no_body, no_body, item]), &[]), Some(Reason::Repeated)),
        (
            "a header twice",
            framed(3, &names(&[no_body, item, (1, Value::Text("a")), (1, Value::Text("b"))]), &[]),
            Some(Reason::Repeated),
        ),
        ("a body that is not there", framed(1, &names(&[has_body]), &[]), Some(Reason::BodyPresence)),
        (
            "a body nobody told of",
            framed(1, &names(&[no_body]), &[1, 0, 0, 0, 7]),
            Some(Reason::BodyPresence),
        ),
        ("a body too short", framed(1, &names(&[has_body]), &[9, 0, 0, 0, 7]), Some(Reason::BodyLength)),
        ("a body too long", framed(1, &names(&[has_body]), &[1, 0, 0, 0, 7, 7]), Some(Reason::BodyLength)),
        ("half a length", framed(1, &names(&[has_body]), &[1, 0]), Some(Reason::Truncated)),
        ("a script", framed(8, &names(&[has_body]), &[0, 0, 0, 0]), Some(Reason::Operation)),
        ("an unknown type", framed(3, &[0x99, 0, 0x0F, 0], &[]), Some(Reason::TokenType)),
        ("the type that marks nothing", framed(3, &[0x99, 0, 0xFF, 0], &[]), Some(Reason::TokenType)),
        (
            "a length beyond the end",
            framed(3, &[0x99, 0, 0x0C, 0xFF, 0xFF, 0xFF, 0xFF], &[]),
            Some(Reason::Truncated),
        ),
        ("no text", framed(3, &[0x99, 0, 0x07, 1, 0xFF], &[]), Some(Reason::TokenValue)),
    ];
    for (name, frame, expected) in cases {
        assert_eq!(reason(Request::decode(&frame)), expected, "{name}");
    }
    let mut database = framed(3, &names(&[no_body, item]), &[]);
    database[4] = 1;
    assert_eq!(reason(Request::decode(&database)), Some(Reason::Resource));
    for length in [0_u32, 4, 23, 25, u32::MAX] {
        let mut frame = framed(3, &[], &[]);
        frame[..4].copy_from_slice(&length.to_le_bytes());
        assert_eq!(reason(Request::decode(&frame)), Some(Reason::HeadLength), "{length}");
    }
}

#[test]
fn a_session_token_travels_without_its_range_and_arrives_with_it() {
    let carried = |token: &str, range: &str| {
        let fields: Vec<Field<'_>> =
            vec![(header::PARTITION_KEY_RANGE_ID, range.into()), (header::SESSION_TOKEN, token.into())];
        let frame =
            Response { status: 200, activity_id: [0; 16], fields, body: b"" }.encode().expect("a frame");
        let mut reader = Reader::new(&frame);
        let mut head = reader.head().expect("a head");
        head.take(20).expect("status and id");
        let mut sent = None;
        while !head.is_empty() {
            if let Ok((0x3E, value)) = head.token() {
                sent = value.text().map(str::to_owned);
            }
        }
        let read = Response::decode(&frame).expect("it is one");
        (
            sent,
            read.fields
                .iter()
                .find(|(name, _)| *name == header::SESSION_TOKEN)
                .map(|(_, text)| text.to_string()),
        )
    };
    let both = |sent: &str, read: &str| (Some(sent.to_owned()), Some(read.to_owned()));
    assert_eq!(carried("0:-1#5", "0"), both("-1#5", "0:-1#5"));
    assert_eq!(carried("1:-1#5,2:-1#6", "1"), both("1:-1#5,2:-1#6", "1:-1#5,2:-1#6"));
    assert_eq!(carried("12:1#5", "1"), both("12:1#5", "12:1#5"));
}

#[test]
fn an_answer_with_a_strange_token_is_only_refused_if_clients_act_on_it() {
    let answer = |id: u16, value: Value<'_>| {
        let tokens = tokens_of(&[(0, Value::Byte(0)), (id, value)]);
        let mut frame = (24 + tokens.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&200_u32.to_le_bytes());
        frame.extend_from_slice(&[0; 16]);
        frame.extend_from_slice(&tokens);
        Response::decode(&frame).map(|response| response.fields.len()).map_err(|error| error.reason)
    };
    assert_eq!(answer(0x15, Value::Double(2.5)), Ok(1));
    assert_eq!(answer(0x15, Value::Float(2.5)), Ok(1), "any width of a number will do");
    assert_eq!(answer(0x1C, Value::UShort(1002)), Ok(1));
    assert_eq!(answer(0x04, Value::SmallText("e")), Ok(1));
    assert_eq!(answer(0x3C, Value::LongLong(-1)), Ok(0), "a number that the server does not know");
    assert_eq!(answer(0x51, Value::ULong(12)), Ok(0), "it only informs");
    assert_eq!(answer(0x15, Value::Double(f64::NAN)), Err(Reason::TokenValue));
    assert_eq!(answer(0x15, Value::Text("2.5")), Err(Reason::TokenValue));
    assert_eq!(answer(0x04, Value::Text("a\nb")), Err(Reason::TokenValue), "no text of a header");
    assert_eq!(answer(0x0C, Value::LongLong(-5)), Err(Reason::TokenValue));
}

#[test]
fn an_answer_has_a_status_of_http_and_the_body_it_tells_of() {
    let answer = Response { status: 200, activity_id: [7; 16], fields: vec![], body: b"{}" };
    let frame = answer.encode().expect("a frame");
    assert_eq!(Response::decode(&frame).as_ref(), Ok(&answer));
    let followed = [&frame[..], b"more"].concat();
    assert_eq!(Response::decode(&followed), Ok(answer), "what follows is not looked at");
    for status in [0_u32, 99, 600, 65_736, u32::MAX] {
        let mut frame = frame.clone();
        frame[4..8].copy_from_slice(&status.to_le_bytes());
        assert_eq!(Response::decode(&frame).map_err(|error| error.reason), Err(Reason::Status), "{status}");
    }
    for end in 0..frame.len() {
        assert!(Response::decode(&frame[..end]).is_err(), "cut at {end}");
    }
}

fn text(random: &mut fastrand::Rng, longest: usize) -> String {
    let length = random.usize(1..=longest);
    (0..length).map(|_| random.char('!'..='\u{24f}')).filter(|c| *c != '\u{7f}').chain(['x']).collect()
}

/// Values of the header that are the same after a journey through a frame.
fn value_of(known: &fields::Known, random: &mut fastrand::Rng) -> String {
    use fields::Form;
    let pick = |random: &mut fastrand::Rng, names: &[&str]| names[random.usize(..names.len())].to_owned();
    match known.form {
        Form::Small => text(random, 30),
        Form::Text => text(random, 300),
        Form::ULong => random.u32(..).to_string(),
        Form::LongLong => random.i64(0..).to_string(),
        Form::Double => (f64::from(random.u32(..)) / 100.0).to_string(),
        Form::Flag => pick(random, &["True", "False"]),
        Form::PageSize => random.i64(-1..100_000).to_string(),
        Form::Preference => header::value::RETURN_MINIMAL.to_owned(),
        Form::Formats => pick(random, &["JsonText", "CosmosBinary", "JsonText,CosmosBinary"]),
        Form::Level => {
            pick(random, &["Strong", "BoundedStaleness", "Session", "Eventual", "ConsistentPrefix"])
        }
        Form::Strategy => pick(random, &["Eventual", "Session", "LatestCommitted", "GlobalStrong"]),
    }
}

fn some_of<'a>(known: &[fields::Known], random: &mut fastrand::Rng) -> Vec<Field<'a>> {
    let chosen: Vec<_> = known.iter().filter(|_| random.bool()).collect::<Vec<_>>();
    chosen.into_iter().map(|known| (known.header, Cow::Owned(value_of(known, random)))).collect()
}

#[test]
fn every_request_survives_its_journey() {
    for seed in 0..400 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let operation = Operation::ALL[random.usize(..Operation::ALL.len())];
        let [account, database, container, item] = [30, 200, 200, 255].map(|longest| text(random, longest));
        let bytes: Vec<u8> = (0..random.usize(..5000)).map(|_| random.u8(..)).collect();
        let places = [Place::Anywhere, Place::Key(&bytes[..bytes.len().min(32)]), Place::Range(b"", b"\xff")];
        let mut fields = some_of(&REQUEST, random);
        if random.bool() {
            let reads = matches!(operation, Operation::Read | Operation::ReadFeed);
            let name = if reads { header::IF_NONE_MATCH } else { header::IF_MATCH };
            fields.push((name, Cow::Owned(text(random, 40))));
        }
        let request = Request {
            operation,
            activity_id: random.u128(..).to_be_bytes(),
            account: &account,
            database: &database,
            container: &container,
            container_rid: random.bool().then_some("AbCdEfGhIjI="),
            item: operation.names_an_item().then_some(&*item),
            place: places[random.usize(..places.len())],
            fields,
            body: random.bool().then_some(&*bytes),
        };
        let frame = request.encode().expect("a frame");
        assert_eq!(Request::decode(&frame).as_ref(), Ok(&request), "seed {seed}");
        assert_eq!(
            [request.encode_before_body().expect("a frame"), request.body.unwrap_or_default().to_vec()]
                .concat(),
            frame
        );
    }
}

#[test]
fn every_answer_survives_its_journey() {
    for seed in 0..400 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let mut fields = some_of(&RESPONSE, random);
        fields.retain(|(name, _)| *name != header::SESSION_TOKEN && *name != header::PARTITION_KEY_RANGE_ID);
        let bytes: Vec<u8> = (0..random.usize(..5000)).map(|_| random.u8(..)).collect();
        let response = Response {
            status: random.u16(100..600),
            activity_id: random.u128(..).to_be_bytes(),
            fields,
            body: &bytes,
        };
        let frame = response.encode().expect("a frame");
        assert_eq!(Response::decode(&frame).as_ref(), Ok(&response), "seed {seed}");
    }
}

/// Whatever is done to a frame, reading it ends, and with an error or with something that can be written again.
#[test]
fn damaged_frames_are_read_or_refused() {
    for seed in 0..60 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let asked = Request { fields: some_of(&REQUEST, random), body: Some(b"{\"id\":\"1\"}"), ..request() };
        let answered =
            Response { status: 200, activity_id: [1; 16], fields: some_of(&RESPONSE, random), body: b"{}" };
        let (asked, answered) = (asked.encode().expect("a frame"), answered.encode().expect("a frame"));
        for end in 0..asked.len() {
            assert!(Request::decode(&asked[..end]).is_err(), "seed {seed}, cut at {end}");
        }
        for _ in 0..400 {
            for (frame, is_request) in [(&asked, true), (&answered, false)] {
                let mut frame = frame.clone();
                for _ in 0..random.usize(1..4) {
                    let at = random.usize(..frame.len());
                    match random.u8(..4) {
                        0 => frame[at] = random.u8(..),
                        1 => frame[at] = frame[at].wrapping_add(1),
                        2 => frame.truncate(at.max(1)),
                        _ => frame.insert(at, random.u8(..)),
                    }
                }
                if is_request {
                    if let Ok(request) = Request::decode(&frame) {
                        assert!(request.fields.len() <= REQUEST.len() + 1);
                        let again = request.encode();
                        let is_rid =
                            request.container_rid.is_none_or(|rid| rid.parse::<crate::rid::Rid>().is_ok());
                        assert!(again.is_ok() || !is_rid, "seed {seed}: {request:?}");
                    }
                } else if let Ok(response) = Response::decode(&frame) {
                    assert!(response.fields.len() <= RESPONSE.len());
                    assert!(response.encode().is_ok(), "seed {seed}: {response:?}");
                }
            }
        }
    }
}

#[test]
fn endless_tokens_cost_no_memory() {
    let mut tokens = Vec::new();
    for _ in 0..500_000 {
        Value::Byte(0).write(0x7777, &mut tokens).expect("short");
    }
    let all =
        [tokens_of(&NAMES), tokens_of(&[(2, Value::Byte(0)), (0x17, Value::Text("i"))]), tokens].concat();
    let frame = framed(3, &all, &[]);
    let request = Request::decode(&frame).expect("unknown tokens are left out");
    assert_eq!(request.fields.capacity(), 0);
}

#[test]
fn only_what_has_a_token_is_carried() {
    for name in [header::IF_MATCH, header::SESSION_TOKEN, header::A_IM, header::CONTINUATION] {
        assert!(carries(name), "{name}");
    }
    for name in [header::PRE_TRIGGER_INCLUDE, header::POPULATE_INDEX_METRICS, header::START_EPK, "x-anything"]
    {
        assert!(!carries(name), "{name}");
    }
}
