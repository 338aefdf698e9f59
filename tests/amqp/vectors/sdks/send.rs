use azure_core_amqp::{AmqpMessage, AmqpSimpleValue, AmqpTimestamp};
use azure_messaging_eventhubs::models::EventData;
fn main() {
    let words = [
        "type", "source", "unit", "line", "site", "count", "celsius", "ok", "trace", "at",
    ];
    for shape in 0..42usize {
        let mut b = EventData::builder().with_body(vec![b'x'; 200]);
        if shape % 3 == 0 {
            b = b.with_content_type("application/json".to_string());
        }
        if shape % 4 == 0 {
            b = b.with_message_id(format!("m-{}", shape));
        }
        if shape % 6 == 1 {
            b = b.with_correlation_id(shape as u64);
        }
        for j in 0..(1 + shape % 8) {
            let name = format!(
                "{}{}",
                words[(shape + 3 * j) % 10],
                if shape > 20 {
                    shape.to_string()
                } else {
                    "".into()
                }
            );
            let value: AmqpSimpleValue = match (shape + 2 * j) % 9 {
                0 => AmqpSimpleValue::from(format!("text {}", shape * j)),
                1 => AmqpSimpleValue::from(shape as i32 * 1000),
                2 => AmqpSimpleValue::from(21.5f64 + shape as f64 / 8.0),
                3 => AmqpSimpleValue::from(j % 2 == 0),
                4 => AmqpSimpleValue::from(1i64 << 40),
                5 => AmqpSimpleValue::from(AmqpTimestamp(Some(
                    std::time::UNIX_EPOCH + std::time::Duration::from_millis(1763600000123),
                ))),
                6 => AmqpSimpleValue::from(shape as u32),
                7 => AmqpSimpleValue::from(0.5f32 + j as f32),
                _ => AmqpSimpleValue::from("plain"),
            };
            b = b.add_property(name, value);
        }
        let m: AmqpMessage = b.build().into();
        let bytes = AmqpMessage::serialize(&m).unwrap();
        println!(
            "{}",
            bytes
                .iter()
                .map(|b| format!("{:02x}", b))
                .collect::<String>()
        );
    }
}
