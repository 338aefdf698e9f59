/* Messages to the columns of events: one pass over the bytes of each.
 *
 * A message is taken as a whole or not at all. Those that are not are left to Python, by their index, and leave nothing
 * behind in the columns: it reads what is rare, and says what is wrong with the rest.
 */
#include "core.h"

/* More sections of a body, or noted types, are left to Python; so is what is nested deeper. */
#define SECTIONS_MAX 64
#define TYPES_MAX 64
#define DEPTH_MAX 16

enum { HEADER = 0x70, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA, SEQUENCES, VALUE,
       FOOTER };
enum { SEQUENCE, OFFSET, TIME, KEY, KNOWN_COUNT };

/* What hubline/amqp/core/library.py calls Decoding: the same fields in the same order. */
typedef struct {
    const uint8_t *data;
    int64_t data_size;
    const int64_t *starts, *ends; /* of messages in the data */
    int64_t count;
    int64_t has_position; /* each has a number, an offset and a time, as a hub delivers them */
    int64_t takes_notes;  /* of types and sections, among the properties */
    Column body, offset, key, names, values;
    int32_t *map_ends; /* where the properties of each event end among the names */
    uint8_t *map_valid;
    int64_t map_null_count;
    int64_t *sequences, *times; /* times in milliseconds */
    int64_t next;  /* the message to continue with */
    int64_t taken; /* how many events are in the columns */
    int64_t *others;
    int64_t others_count;
} Decoding;

typedef struct {
    const uint8_t *name;
    int64_t size;
    const char *type;
} NotedType;

typedef struct {
    Reader known[KNOWN_COUNT]; /* values of annotations; at NULL where there is none */
    int body; /* the code of its sections; 0 as long as there is none */
    int sections_count;
    int64_t sections[SECTIONS_MAX]; /* their sizes; -1 is a null */
    int types_count;
    NotedType types[TYPES_MAX];
} Message;

static const char *const FIELDS[] = {
    "amqp:message-id", "amqp:user-id", "amqp:to", "amqp:subject", "amqp:reply-to", "amqp:correlation-id",
    "amqp:content-type", "amqp:content-encoding", "amqp:absolute-expiry-time", "amqp:creation-time", "amqp:group-id",
    "amqp:group-sequence", "amqp:reply-to-group-id"};
enum { FIELDS_COUNT = sizeof FIELDS / sizeof *FIELDS, MESSAGE_ID = 0, CORRELATION_ID = 5 };

static bool take_section(Reader *reader, int *section) {
    static const struct { const char *name; int section; } NAMED[] = {
        {"amqp:header:list", HEADER}, {"amqp:delivery-annotations:map", DELIVERY_ANNOTATIONS},
        {"amqp:message-annotations:map", ANNOTATIONS}, {"amqp:properties:list", PROPERTIES},
        {"amqp:application-properties:map", APPLICATION_PROPERTIES}, {"amqp:data:binary", DATA},
        {"amqp:amqp-value:*", VALUE}, {"amqp:footer:map", FOOTER}};
    uint8_t code;
    uint64_t number = 0;
    Reader name;
    if (!take_code(reader, &code) || code != DESCRIBED || !take_code(reader, &code))
        return false;
    if (LIKELY(code == SMALL_ULONG) || code == ULONG) {
        if (!take_number(reader, code == ULONG ? 8 : 1, &number) || number < HEADER || number > FOOTER)
            return false;
        *section = (int)number;
        return true;
    }
    if ((code != SYMBOL_8 && code != SYMBOL_32) || !take_sized(reader, size_width(code), &name))
        return false;
    for (size_t index = 0; index < sizeof NAMED / sizeof *NAMED; index++)
        if (is_equal(name, NAMED[index].name, (int64_t)strlen(NAMED[index].name))) {
            *section = NAMED[index].section;
            return true;
        }
    return false;
}

/* The content of a map, and how many pairs it has. Null is a map without any. */
static bool take_map(Reader *reader, Reader *content, uint64_t *pairs_count) {
    uint8_t code;
    *pairs_count = 0;
    *content = (Reader){NULL, NULL};
    if (!take_code(reader, &code))
        return false;
    if (code == NULL_VALUE)
        return true;
    if (code != MAP_8 && code != MAP_32)
        return false;
    if (!take_sized(reader, size_width(code), content) || !take_number(content, size_width(code), pairs_count) ||
        *pairs_count % 2)
        return false;
    *pairs_count /= 2;
    return true;
}

static int known_annotation(Reader name) {
    switch (left(&name)) {
    case 12:
        return is_equal(name, "x-opt-offset", 12) ? OFFSET : KNOWN_COUNT;
    case 19:
        if (is_equal(name, "x-opt-enqueued-time", 19))
            return TIME;
        return is_equal(name, "x-opt-partition-key", 19) ? KEY : KNOWN_COUNT;
    case 21:
        return is_equal(name, "x-opt-sequence-number", 21) ? SEQUENCE : KNOWN_COUNT;
    default:
        return KNOWN_COUNT;
    }
}

static bool take_annotations(Reader *reader, Message *message) {
    Reader content;
    uint64_t count;
    if (!take_map(reader, &content, &count))
        return false;
    for (; count; count--) {
        uint8_t code;
        int64_t number;
        Reader name;
        int known = KNOWN_COUNT;
        if (!take_code(&content, &code))
            return false;
        if (is_text(code)) {
            if (!take_text(&content, code, &name))
                return false;
            known = known_annotation(name);
        } else if (!take_integer(&content, code, &number)) {
            return false;
        }
        if (known < KNOWN_COUNT) {
            if (message->known[known].at)
                return false;
            message->known[known] = content;
        }
        if (!skip_value(&content))
            return false;
        if (known < KNOWN_COUNT)
            message->known[known].end = content.at;
    }
    return content.at == content.end;
}

static bool note_type(Message *message, const uint8_t *name, int64_t size, uint8_t code) {
    const char *type = type_name(code);
    if (!type)
        return true;
    if (message->types_count == TYPES_MAX)
        return false;
    message->types[message->types_count++] = (NotedType){name, size, type};
    return true;
}

/* The text of the next value as a row; null is null. */
static bool take_property_value(Decoding *run, Reader *reader) {
    if (reader->at < reader->end && *reader->at == NULL_VALUE) {
        reader->at++;
        return end_row(&run->values, false);
    }
    return put_value(&run->values, reader, DEPTH_MAX, false) && end_row(&run->values, true);
}

/* The message's own properties: a list of as many as there are, those that are null left out. */
static bool take_properties(Decoding *run, Reader *reader, Message *message) {
    uint8_t code;
    uint64_t count;
    Reader content;
    if (!take_code(reader, &code))
        return false;
    if (code == LIST_0)
        return true;
    if ((code != LIST_8 && code != LIST_32) || !take_sized(reader, size_width(code), &content) ||
        !take_number(&content, size_width(code), &count) || count > FIELDS_COUNT)
        return false;
    for (uint64_t field = 0; field < count; field++) {
        const char *name = FIELDS[field];
        if (content.at >= content.end)
            return false;
        if (*content.at == NULL_VALUE) {
            content.at++;
            continue;
        }
        if ((field == MESSAGE_ID || field == CORRELATION_ID) && run->takes_notes &&
            !note_type(message, (const uint8_t *)name, (int64_t)strlen(name), *content.at))
            return false;
        if (!put_text(&run->names, name) || !end_row(&run->names, true) || !take_property_value(run, &content))
            return false;
    }
    return content.at == content.end;
}

static bool take_application_properties(Decoding *run, Reader *reader, Message *message) {
    Reader content, name;
    uint64_t count;
    if (!take_map(reader, &content, &count))
        return false;
    for (; count; count--) {
        uint8_t code;
        if (!take_code(&content, &code) || !is_text(code) || !take_text(&content, code, &name) ||
            content.at >= content.end)
            return false;
        if (run->takes_notes) {
            if (left(&name) >= 5 && memcmp(name.at, "amqp:", 5) == 0) /* nobody's name: it may be a field's */
                return false;
            if (!note_type(message, name.at, left(&name), *content.at))
                return false;
        }
        if (!put(&run->names, name.at, left(&name)) || !end_row(&run->names, true) ||
            !take_property_value(run, &content))
            return false;
    }
    return content.at == content.end;
}

/* Bytes as they are, in one section or several. */
static bool take_data(Decoding *run, Reader *reader, Message *message) {
    uint8_t code;
    Reader content = {NULL, NULL};
    if (!take_code(reader, &code) || (!is_binary(code) && code != NULL_VALUE) || message->body == VALUE ||
        message->sections_count == SECTIONS_MAX)
        return false;
    if (code != NULL_VALUE && !take_sized(reader, size_width(code), &content))
        return false;
    message->body = DATA;
    message->sections[message->sections_count++] = code == NULL_VALUE ? -1 : left(&content);
    return put(&run->body, content.at, left(&content));
}

/* A body that is one value: bytes, text or null. */
static bool take_body_value(Decoding *run, Reader *reader, Message *message) {
    uint8_t code;
    Reader content = {NULL, NULL};
    if (message->body || !take_code(reader, &code))
        return false;
    message->body = VALUE;
    if (is_binary(code) ? !take_sized(reader, size_width(code), &content)
        : is_text(code) ? !take_text(reader, code, &content)
                        : code != NULL_VALUE)
        return false;
    return put(&run->body, content.at, left(&content));
}

static bool take_sections(Decoding *run, Reader *reader, Message *message) {
    while (reader->at < reader->end) {
        int section;
        bool is_taken;
        if (!take_section(reader, &section))
            return false;
        switch (section) {
        case ANNOTATIONS: is_taken = take_annotations(reader, message); break;
        case PROPERTIES: is_taken = take_properties(run, reader, message); break;
        case APPLICATION_PROPERTIES: is_taken = take_application_properties(run, reader, message); break;
        case DATA: is_taken = take_data(run, reader, message); break;
        case VALUE: is_taken = take_body_value(run, reader, message); break;
        case SEQUENCES: is_taken = false; break;
        default: is_taken = skip_value(reader);
        }
        if (!is_taken)
            return false;
    }
    return true;
}

/* A number among the annotations. One that is there has to be a number, even where nobody asks for it. */
static bool take_known_integer(const Message *message, int known, bool is_required, int64_t *number) {
    Reader value = message->known[known];
    uint8_t code;
    if (!value.at || !take_code(&value, &code))
        return !is_required;
    if (code == NULL_VALUE)
        return !is_required;
    return take_integer(&value, code, number);
}

static bool put_offset(Decoding *run, const Message *message) {
    Reader value = message->known[OFFSET], text;
    uint8_t code;
    int64_t number;
    if (!value.at || !take_code(&value, &code) || code == NULL_VALUE)
        return !run->has_position;
    if (is_text(code)) {
        if (!take_text(&value, code, &text))
            return false;
        return !run->has_position || (put(&run->offset, text.at, left(&text)) && end_row(&run->offset, true));
    }
    if (!take_integer(&value, code, &number))
        return false;
    return !run->has_position || (put_integer(&run->offset, number) && end_row(&run->offset, true));
}

static bool put_key(Decoding *run, const Message *message) {
    Reader value = message->known[KEY];
    if (!value.at || *value.at == NULL_VALUE)
        return end_row(&run->key, false);
    return put_value(&run->key, &value, DEPTH_MAX, false) && end_row(&run->key, true);
}

/* amqp:types, the types of properties that are not strings; none of them twice, or it would matter which counts. */
static bool put_types(Decoding *run, const Message *message) {
    if (!message->types_count)
        return true;
    if (!put_text(&run->names, "amqp:types") || !end_row(&run->names, true) || !put_text(&run->values, "{"))
        return false;
    for (int index = 0; index < message->types_count; index++) {
        const NotedType *noted = &message->types[index];
        Reader name = {noted->name, noted->name + noted->size};
        for (int other = 0; other < index; other++)
            if (is_equal(name, (const char *)message->types[other].name, message->types[other].size))
                return false;
        if ((index && !put_text(&run->values, ",")) || !put_json_text(&run->values, name) ||
            !put_text(&run->values, ":\"") || !put_text(&run->values, noted->type) || !put_text(&run->values, "\""))
            return false;
    }
    return put_text(&run->values, "}") && end_row(&run->values, true);
}

/* amqp:data-sections, where the body came in other than one. */
static bool put_sections(Decoding *run, const Message *message) {
    if (message->body != DATA || (message->sections_count == 1 && message->sections[0] >= 0))
        return true;
    if (!put_text(&run->names, "amqp:data-sections") || !end_row(&run->names, true) || !put_text(&run->values, "["))
        return false;
    for (int index = 0; index < message->sections_count; index++) {
        int64_t size = message->sections[index];
        if ((index && !put_text(&run->values, ",")) ||
            !(size < 0 ? put_text(&run->values, "null") : put_integer(&run->values, size)))
            return false;
    }
    return put_text(&run->values, "]") && end_row(&run->values, true);
}

static bool take_message(Decoding *run, Reader reader) {
    Message message;
    memset(message.known, 0, sizeof message.known);
    message.body = message.sections_count = message.types_count = 0;
    int64_t names_before = run->names.rows, row = run->taken, sequence = 0, time = 0;
    if (!take_sections(run, &reader, &message) || !end_row(&run->body, true) ||
        !take_known_integer(&message, SEQUENCE, run->has_position, &sequence) ||
        !take_known_integer(&message, TIME, run->has_position, &time) || !put_offset(run, &message) ||
        !put_key(run, &message))
        return false;
    if (run->takes_notes && (!put_types(run, &message) || !put_sections(run, &message)))
        return false;
    if (run->has_position) {
        run->sequences[row] = sequence;
        run->times[row] = time;
    }
    bool has_properties = run->names.rows > names_before;
    run->map_ends[row + 1] = (int32_t)run->names.rows;
    set_valid(run->map_valid, row, has_properties);
    run->map_null_count += !has_properties;
    run->taken++;
    return true;
}

enum { COLUMNS_COUNT = 5 };

static Column *column_of(Decoding *run, int index) {
    Column *columns[COLUMNS_COUNT] = {&run->body, &run->offset, &run->key, &run->names, &run->values};
    return columns[index];
}

/* Decodes from `next` on. Ends early where a column wants room: the caller makes it and calls again. Returns whether
 * all messages are done. */
EXPORT int hubline_decode(Decoding *run) {
    for (; run->next < run->count; run->next++) {
        int64_t start = run->starts[run->next], end = run->ends[run->next];
        struct { int64_t rows, bytes_count, null_count; } before[COLUMNS_COUNT];
        for (int index = 0; index < COLUMNS_COUNT; index++) {
            const Column *column = column_of(run, index);
            before[index].rows = column->rows;
            before[index].bytes_count = column->bytes_count;
            before[index].null_count = column->null_count;
        }
        if (start >= 0 && start <= end && end <= run->data_size &&
            LIKELY(take_message(run, (Reader){run->data + start, run->data + end})))
            continue;
        bool wants_room = false;
        for (int index = 0; index < COLUMNS_COUNT; index++) {
            Column *column = column_of(run, index);
            wants_room |= column->rows_wanted > column->rows_max || column->bytes_wanted > column->bytes_max;
            column->rows = before[index].rows;
            column->bytes_count = before[index].bytes_count;
            column->null_count = before[index].null_count;
        }
        if (wants_room)
            return 0;
        run->others[run->others_count++] = run->next;
    }
    return 1;
}
