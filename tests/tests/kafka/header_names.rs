//! Headers whose names are not UTF-8, which only other clients can write.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use inbox_tests::{
    eventually,
    process::{Mode, WorkerCommand},
};

use super::KafkaWorld;

/// A panic hook that aborts must not see the panic, or each redelivery of the record would end the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g29_a_header_name_that_is_not_utf8_ends_no_process() {
    let world = KafkaWorld::new().await;
    let topic = format!("{}order.created", world.broker.prefix());
    let broker = world.broker.brokers().to_owned();
    world.publish("m1").await;
    tokio::task::spawn_blocking(move || publish(&broker, &topic, br#"{"order_id":"o"}"#, &[(b"\xff\xfe", b"x")]))
        .await
        .expect("published");
    world.publish("m2").await;
    let mut worker = WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "billing")
        .env("INBOX_TEST_PANIC_HOOK", "abort")
        .start();
    worker.logs("the name of a header is not UTF-8").await;
    eventually("all is settled", || world.settled("billing")).await;
    worker.stop().await;
    for id in ["m1", &format!("{}order.created:0:1", world.broker.prefix()), "m2"] {
        world.assert_done("billing", id).await;
    }
}

/// Publishes a record to partition 0, in Kafka's own protocol (Produce, version 3).
fn publish(broker: &str, topic: &str, payload: &[u8], headers: &[(&[u8], &[u8])]) {
    let batch = batch(payload, headers);
    let mut request = Vec::new();
    // Produce, version 3, correlation id 7, no client id, no transactional id.
    for number in [0_i16, 3] {
        request.extend(number.to_be_bytes());
    }
    request.extend(7_i32.to_be_bytes());
    request.extend((-1_i16).to_be_bytes());
    request.extend((-1_i16).to_be_bytes());
    // acks=all, a timeout of ten seconds, one topic.
    request.extend((-1_i16).to_be_bytes());
    request.extend(10_000_i32.to_be_bytes());
    request.extend(1_i32.to_be_bytes());
    request.extend(i16::try_from(topic.len()).expect("a short name").to_be_bytes());
    request.extend(topic.as_bytes());
    // One partition, number 0.
    request.extend(1_i32.to_be_bytes());
    request.extend(0_i32.to_be_bytes());
    request.extend(length(&batch));
    request.extend(batch);

    let mut server = TcpStream::connect(broker).expect("a connection");
    server.write_all(&length(&request)).expect("sent");
    server.write_all(&request).expect("sent");
    let mut answer = [0; 4];
    server.read_exact(&mut answer).expect("an answer");
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(answer)).expect("a length")];
    server.read_exact(&mut answer).expect("an answer");
    // After the correlation id, the number of topics, the name, the number of partitions and the partition.
    let code = 4 + 4 + 2 + topic.len() + 4 + 4;
    assert_eq!(answer[code..code + 2], [0, 0], "{answer:?}");
}

/// A batch of one record, in the format of version 2.
fn batch(payload: &[u8], headers: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut record = vec![0];
    // Timestamp delta, offset delta, no key.
    for number in [0, 0, -1] {
        varint(&mut record, number);
    }
    bytes(&mut record, payload);
    varint(&mut record, i64::try_from(headers.len()).expect("a few"));
    for (name, value) in headers {
        bytes(&mut record, name);
        bytes(&mut record, value);
    }
    let mut body = Vec::new();
    // No compression, the last offset delta, two timestamps.
    body.extend(0_i16.to_be_bytes());
    body.extend(0_i32.to_be_bytes());
    for _ in 0..2 {
        body.extend(1_700_000_000_000_i64.to_be_bytes());
    }
    // Producer id, epoch and sequence of a producer without idempotence; one record.
    body.extend((-1_i64).to_be_bytes());
    body.extend((-1_i16).to_be_bytes());
    body.extend((-1_i32).to_be_bytes());
    body.extend(1_i32.to_be_bytes());
    bytes(&mut body, &record);

    let mut batch = Vec::new();
    batch.extend(0_i64.to_be_bytes());
    // The length of leader epoch, version, checksum and body.
    let rest = i32::try_from(4 + 1 + 4 + body.len()).expect("a short batch");
    batch.extend(rest.to_be_bytes());
    batch.extend((-1_i32).to_be_bytes());
    batch.push(2);
    batch.extend(crc32c(&body).to_be_bytes());
    batch.extend(body);
    batch
}

fn length(bytes: &[u8]) -> [u8; 4] {
    i32::try_from(bytes.len()).expect("a short text").to_be_bytes()
}

fn bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    varint(into, i64::try_from(bytes.len()).expect("a short text"));
    into.extend(bytes);
}

/// A zigzag varint.
fn varint(into: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
    while rest >= 0x80 {
        into.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    into.push(rest as u8);
}

/// CRC-32C (Castagnoli).
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                (crc >> 1) ^ 0x82f6_3b78
            } else {
                crc >> 1
            }
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}
