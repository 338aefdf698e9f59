// Writes rhea.json: AMQP as rhea (npm) encodes it, in hexadecimal digits. To make it anew:
//
//     cd "$(mktemp -d)" && npm install rhea@3.0.5
//     NODE_PATH=node_modules node /path/to/tests/amqp/vectors/generate.js > /path/to/tests/amqp/vectors/rhea.json
//
// What the bytes mean is written by hand in ../test_peers.py: an independent peer's word against ours.

'use strict';

const types = require('rhea/lib/types');
const frames = require('rhea/lib/frames');
const message = require('rhea/lib/message');
const terminus = require('rhea/lib/terminus');

function value(typed) {
    const writer = new types.Writer();
    writer.write(typed);
    return writer.toBuffer().toString('hex');
}

function frame(channel, performative, payload) {
    return frames.write_frame(frames.amqp_frame(channel, performative, payload)).toString('hex');
}

function sasl(performative) {
    return frames.write_frame(frames.sasl_frame(performative)).toString('hex');
}

const values = {
    null: value(types.wrap(null)),
    true: value(types.wrap_boolean(true)),
    false: value(types.wrap_boolean(false)),
    ubyte: value(types.wrap_ubyte(200)),
    ushort: value(types.wrap_ushort(60000)),
    uint_zero: value(types.wrap_uint(0)),
    uint_small: value(types.wrap_uint(255)),
    uint: value(types.wrap_uint(4000000000)),
    ulong_zero: value(types.wrap_ulong(0)),
    ulong_small: value(types.wrap_ulong(255)),
    ulong: value(types.wrap_ulong(9007199254740991)),
    byte: value(types.wrap_byte(-100)),
    short: value(types.wrap_short(-30000)),
    int_small: value(types.wrap_int(-100)),
    int: value(types.wrap_int(-2000000000)),
    long_small: value(types.wrap_long(-100)),
    long: value(types.wrap_long(-9007199254740991)),
    float: value(types.wrap_float(1.5)),
    double: value(types.wrap_double(-0.1)),
    timestamp: value(types.wrap_timestamp(1700000000123)),
    timestamp_negative: value(types.wrap_timestamp(-1)),
    char: value(types.wrap_char('é'.codePointAt(0))),
    uuid: value(types.wrap_uuid(Buffer.from('00112233445566778899aabbccddeeff', 'hex'))),
    binary: value(types.wrap_binary(Buffer.from([0, 255]))),
    binary_large: value(types.wrap_binary(Buffer.alloc(300, 7))),
    string: value(types.wrap_string('häuser')),
    string_large: value(types.wrap_string('x'.repeat(300))),
    symbol: value(types.wrap_symbol('com.microsoft:epoch')),
    symbol_large: value(types.wrap_symbol('y'.repeat(300))),
    list_empty: value(types.wrap_list([])),
    list: value(types.wrap_list([1, 'two', [3, null]])),
    list_large: value(types.wrap_list(new Array(300).fill('z'))),
    map: value(types.wrap_map({a: 1, b: true})),
    map_symbolic: value(types.wrap_symbolic_map({c: 'd'})),
    array_symbol: value(types.wrap_array(['one', 'two'], 0xa3)),
    array_int: value(types.wrap_array([1, -2], 0x71)),
    array_empty: value(types.wrap_array([], 0xa3)),
    described_symbol: value(types.wrap_described('it', 'apache.org:selector-filter:string')),
    described_ulong: value(types.wrap_described('it', 77567109365764)),
};

const filter = {
    'apache.org:selector-filter:string': types.wrap_described(
        "amqp.annotation.x-opt-offset > '@latest'", 77567109365764),
};

const performatives = {
    open: frame(0, frames.open({
        container_id: 'c', hostname: 'h', max_frame_size: 65536, channel_max: 100, idle_time_out: 60000,
        desired_capabilities: ['one', 'two'], properties: {product: 'p'},
    })),
    begin: frame(3, frames.begin({next_outgoing_id: 1, incoming_window: 2048, outgoing_window: 4096})),
    attach: frame(3, frames.attach({
        name: 'l', handle: 0, role: true, snd_settle_mode: 1,
        source: terminus.source({address: 'hub/ConsumerGroups/$Default/Partitions/0', filter: filter}).described(),
        target: terminus.target({address: 't'}).described(),
        max_message_size: 1048576, desired_capabilities: 'com.microsoft:enable-receiver-runtime-metric',
        properties: {'com.microsoft:epoch': types.wrap_long(5)},
    })),
    flow: frame(3, frames.flow({
        next_incoming_id: 0, incoming_window: 10, next_outgoing_id: 1, outgoing_window: 20,
        handle: 0, delivery_count: 0, link_credit: 1000,
    })),
    transfer: frame(3, frames.transfer({
        handle: 0, delivery_id: 9, delivery_tag: Buffer.from('t'), message_format: 0, settled: true,
    }), Buffer.from('payload')),
    disposition: frame(3, frames.disposition({
        role: true, first: 1, last: 2, settled: true, state: message.accepted().described(),
    })),
    rejected: frame(3, frames.disposition({
        role: true, first: 1, settled: true,
        state: message.rejected({error: {condition: 'amqp:link:stolen', description: 'd'}}).described(),
    })),
    detach: frame(3, frames.detach({handle: 0, closed: true, error: {condition: 'amqp:not-found', description: 'no'}})),
    end: frame(3, frames.end({})),
    close: frame(0, frames.close({error: {condition: 'amqp:connection:forced', description: 'bye'}})),
    sasl_mechanisms: sasl(frames.sasl_mechanisms({sasl_server_mechanisms: ['MSSBCBS', 'ANONYMOUS']})),
    sasl_init: sasl(frames.sasl_init({mechanism: 'ANONYMOUS', initial_response: Buffer.from('\0k'), hostname: 'h'})),
    sasl_outcome: sasl(frames.sasl_outcome({code: 0})),
};

const annotations = {
    'x-opt-sequence-number': types.wrap_long(12345678901),
    'x-opt-offset': '987654',
    'x-opt-enqueued-time': types.wrap_timestamp(1700000000123),
    'x-opt-partition-key': 'key',
};

const messages = {
    data: message.encode({message_annotations: annotations, body: message.data_section(Buffer.from('body'))}),
    data_parts: message.encode({
        message_annotations: annotations, body: message.data_sections([Buffer.from('bo'), Buffer.from('dy')]),
    }),
    value: message.encode({message_annotations: annotations, body: 'body'}),
    value_map: message.encode({message_annotations: annotations, body: {a: [1, 2.5, null, true]}}),
    sequence: message.encode({message_annotations: annotations, body: message.sequence_section([1, 'a'])}),
    everything: message.encode({
        durable: true, priority: 7, ttl: 1000,
        delivery_annotations: {last_enqueued_sequence_number: types.wrap_long(7)},
        message_annotations: annotations,
        message_id: 'id', to: 'hub', subject: 's', reply_to: 'r', correlation_id: 'c', content_type: 'text/plain',
        creation_time: 1700000000000, group_id: 'g', group_sequence: 3,
        application_properties: {
            text: 'häuser', number: 5, negative: -5, real: 0.25, yes: true, nothing: null, time: new Date(0),
            uuid: types.wrap_uuid(Buffer.from('00112233445566778899aabbccddeeff', 'hex')),
        },
        body: message.data_section(Buffer.alloc(300, 1)),
        footer: {f: 1},
    }),
};

process.stdout.write(JSON.stringify({
    rhea: require('rhea/package.json').version,
    values: values,
    performatives: performatives,
    messages: Object.fromEntries(Object.entries(messages).map(([name, data]) => [name, data.toString('hex')])),
}, null, 1) + '\n');
