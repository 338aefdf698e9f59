/* Values as text: what hubline/amqp/codec/text.py says, for what peers really send. */
#include "core.h"

/* Each key is compared with those before it. A map with more of them is left to Python. */
#define KEYS_MAX 32

static bool put_unsigned(Column *column, uint64_t number) {
    char digits[20];
    int first = sizeof digits;
    do {
        digits[--first] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    return put(column, digits + first, (int64_t)sizeof digits - first);
}

bool put_integer(Column *column, int64_t number) {
    if (number >= 0)
        return put_unsigned(column, (uint64_t)number);
    return put_text(column, "-") && put_unsigned(column, 0 - (uint64_t)number);
}

static bool is_continued(const uint8_t *at, int count) {
    for (int index = 1; index <= count; index++)
        if ((at[index] & 0xC0) != 0x80)
            return false;
    return true;
}

/* As Python decodes it: no overlong forms, no surrogates, nothing above U+10FFFF. */
bool is_utf8(Reader text) {
    const uint8_t *at = text.at, *end = text.end;
    while (at < end) {
        uint64_t word;
        if (end - at >= 8 && (memcpy(&word, at, 8), !(word & 0x8080808080808080u))) {
            at += 8;
        } else if (*at < 0x80) {
            at++;
        } else if (*at >= 0xC2 && *at < 0xE0) {
            if (end - at < 2 || !is_continued(at, 1))
                return false;
            at += 2;
        } else if (*at >= 0xE0 && *at < 0xF0) {
            if (end - at < 3 || !is_continued(at, 2))
                return false;
            if ((*at == 0xE0 && at[1] < 0xA0) || (*at == 0xED && at[1] >= 0xA0))
                return false;
            at += 3;
        } else if (*at >= 0xF0 && *at < 0xF5) {
            if (end - at < 4 || !is_continued(at, 3))
                return false;
            if ((*at == 0xF0 && at[1] < 0x90) || (*at == 0xF4 && at[1] >= 0x90))
                return false;
            at += 4;
        } else {
            return false;
        }
    }
    return true;
}

/* The text of a string or symbol, after its code. */
bool take_text(Reader *reader, uint8_t code, Reader *text) {
    return take_sized(reader, size_width(code), text) && is_utf8(*text);
}

/* Any number without a fraction that has 64 bits with a sign, after its code; a timestamp is its milliseconds. */
bool take_integer(Reader *reader, uint8_t code, int64_t *number) {
    uint64_t bits = 0;
    switch (code) {
    case UINT_0: case ULONG_0:
        break;
    case UBYTE: case SMALL_UINT: case SMALL_ULONG:
        if (!take_number(reader, 1, &bits))
            return false;
        break;
    case USHORT:
        if (!take_number(reader, 2, &bits))
            return false;
        break;
    case UINT:
        if (!take_number(reader, 4, &bits))
            return false;
        break;
    case ULONG:
        if (!take_number(reader, 8, &bits) || bits > INT64_MAX)
            return false;
        break;
    case BYTE: case SMALL_INT: case SMALL_LONG:
        if (!take_number(reader, 1, &bits))
            return false;
        *number = (int8_t)bits;
        return true;
    case SHORT:
        if (!take_number(reader, 2, &bits))
            return false;
        *number = (int16_t)bits;
        return true;
    case INT:
        if (!take_number(reader, 4, &bits))
            return false;
        *number = (int32_t)bits;
        return true;
    case LONG: case TIMESTAMP:
        if (!take_number(reader, 8, &bits))
            return false;
        break;
    default:
        return false;
    }
    *number = (int64_t)bits;
    return true;
}

/* The type that is noted of a value; NULL of a string, and of what holds others. */
const char *type_name(uint8_t code) {
    switch (code) {
    case TRUE_VALUE: case FALSE_VALUE: case BOOLEAN: return "boolean";
    case UBYTE: return "ubyte";
    case USHORT: return "ushort";
    case UINT: case SMALL_UINT: case UINT_0: return "uint";
    case ULONG: case SMALL_ULONG: case ULONG_0: return "ulong";
    case BYTE: return "byte";
    case SHORT: return "short";
    case INT: case SMALL_INT: return "int";
    case LONG: case SMALL_LONG: return "long";
    case FLOAT: return "float";
    case DOUBLE: return "double";
    case DECIMAL_32: case DECIMAL_64: case DECIMAL_128: return "decimal";
    case CHAR: return "char";
    case TIMESTAMP: return "timestamp";
    case UUID: return "uuid";
    case BINARY_8: case BINARY_32: return "binary";
    case SYMBOL_8: case SYMBOL_32: return "symbol";
    default: return NULL;
    }
}

/* Passes over a value without descriptor; what a list, map or array holds is not looked at. */
bool skip_value(Reader *reader) {
    uint8_t code;
    Reader content;
    if (!take_code(reader, &code))
        return false;
    switch (code) {
    case NULL_VALUE: case TRUE_VALUE: case FALSE_VALUE: case UINT_0: case ULONG_0: case LIST_0:
        return true;
    case UBYTE: case BYTE: case SMALL_UINT: case SMALL_ULONG: case SMALL_INT: case SMALL_LONG: case BOOLEAN:
        return take_part(reader, 1, &content);
    case USHORT: case SHORT:
        return take_part(reader, 2, &content);
    case UINT: case INT: case FLOAT: case CHAR: case DECIMAL_32:
        return take_part(reader, 4, &content);
    case ULONG: case LONG: case DOUBLE: case TIMESTAMP: case DECIMAL_64:
        return take_part(reader, 8, &content);
    case DECIMAL_128: case UUID:
        return take_part(reader, 16, &content);
    case BINARY_8: case STRING_8: case SYMBOL_8: case BINARY_32: case STRING_32: case SYMBOL_32:
    case LIST_8: case MAP_8: case LIST_32: case MAP_32: case ARRAY_8: case ARRAY_32:
        return take_sized(reader, size_width(code), &content);
    default:
        return false;
    }
}

static const char HEXADECIMAL[] = "0123456789abcdef";

bool put_json_text(Column *column, Reader text) {
    if (!put_text(column, "\""))
        return false;
    while (text.at < text.end) {
        const uint8_t *plain = text.at;
        while (text.at < text.end && *text.at >= 0x20 && *text.at != '"' && *text.at != '\\')
            text.at++;
        if (!put(column, plain, text.at - plain))
            return false;
        if (text.at == text.end)
            break;
        uint8_t octet = *text.at++;
        char escaped[6] = {'\\', 'u', '0', '0', HEXADECIMAL[octet >> 4], HEXADECIMAL[octet & 15]};
        const char *named = strchr("\"\"\\\\\bb\ff\nn\rr\tt", octet);
        int size = octet && named ? 2 : 6;
        if (size == 2)
            escaped[1] = named[1];
        if (!put(column, escaped, size))
            return false;
    }
    return put_text(column, "\"");
}

static bool put_quote(Column *column, bool is_json) { return !is_json || put_text(column, "\""); }

static bool put_hexadecimal(Column *column, Reader octets) {
    for (; octets.at < octets.end; octets.at++) {
        char digits[2] = {HEXADECIMAL[*octets.at >> 4], HEXADECIMAL[*octets.at & 15]};
        if (!put(column, digits, 2))
            return false;
    }
    return true;
}

static bool put_uuid(Column *column, Reader octets) {
    static const int WIDTHS[] = {4, 2, 2, 2, 6};
    for (int group = 0; group < 5; group++) {
        Reader part;
        if ((group && !put_text(column, "-")) || !take_part(&octets, WIDTHS[group], &part) ||
            !put_hexadecimal(column, part))
            return false;
    }
    return true;
}

static bool put_base64(Column *column, Reader octets) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    while (octets.at < octets.end) {
        int64_t count = left(&octets) < 3 ? left(&octets) : 3;
        uint32_t bits = (uint32_t)octets.at[0] << 16;
        bits |= count > 1 ? (uint32_t)octets.at[1] << 8 : 0;
        bits |= count > 2 ? (uint32_t)octets.at[2] : 0;
        char digits[4] = {DIGITS[bits >> 18], DIGITS[bits >> 12 & 63], count > 1 ? DIGITS[bits >> 6 & 63] : '=',
                          count > 2 ? DIGITS[bits & 63] : '='};
        if (!put(column, digits, 4))
            return false;
        octets.at += count;
    }
    return true;
}

/* 2026-01-31T12:00:00.000Z, for years of four digits. */
static bool put_timestamp(Column *column, int64_t milliseconds) {
    const int64_t day = 86400000, first = -30610224000000, end = 253402300800000; /* the years 1000 and 10000 */
    if (milliseconds < first || milliseconds >= end)
        return false;
    int64_t days = milliseconds / day - (milliseconds % day < 0);
    int64_t rest = milliseconds - days * day;
    /* Years begin in March here, so that the day of a leap year comes last; eras have 400 years. */
    int64_t since = days + 719468, era = since / 146097, day_of_era = since % 146097;
    int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t shifted = (5 * day_of_year + 2) / 153;
    int64_t month = shifted < 10 ? shifted + 3 : shifted - 9;
    int64_t year = era * 400 + year_of_era + (month <= 2);
    int64_t numbers[] = {year, month, day_of_year - (153 * shifted + 2) / 5 + 1, rest / 3600000, rest / 60000 % 60,
                         rest / 1000 % 60, rest % 1000};
    char text[] = "0000-00-00T00:00:00.000Z";
    static const int LAST[] = {3, 6, 9, 12, 15, 18, 22};
    for (int index = 0; index < 7; index++)
        for (int place = LAST[index]; numbers[index]; numbers[index] /= 10)
            text[place--] = (char)('0' + numbers[index] % 10);
    return put(column, text, sizeof text - 1);
}

static bool put_char(Column *column, uint64_t number, bool is_json) {
    uint8_t octets[4];
    int size;
    if (number < 0x80) {
        octets[0] = (uint8_t)number;
        size = 1;
    } else if (number < 0x800) {
        octets[0] = (uint8_t)(0xC0 | number >> 6);
        size = 2;
    } else if (number < 0x10000) {
        octets[0] = (uint8_t)(0xE0 | number >> 12);
        size = 3;
    } else {
        octets[0] = (uint8_t)(0xF0 | (number >> 18 & 7));
        size = 4;
    }
    for (int index = 1; index < size; index++)
        octets[index] = (uint8_t)(0x80 | (number >> 6 * (size - 1 - index) & 0x3F));
    if (number > 0x10FFFF || (number >= 0xD800 && number < 0xE000))
        return false;
    Reader text = {octets, octets + size};
    return is_json ? put_json_text(column, text) : put(column, octets, size);
}

#ifdef __SIZEOF_INT128__
/* The fewest digits that give mantissa / 2**shift again, exactly: digits with ever more decimals are compared with the
 * number in 128 bits. Where two neighbors of the number are not equally far, or digits lie just between it and one of
 * them, Python decides. */
static bool put_fraction(Column *column, uint64_t mantissa, int shift, bool is_power_of_two) {
    unsigned __int128 scale = 1;
    for (int decimals = 0; decimals <= 20; decimals++, scale *= 10) {
        unsigned __int128 exact = mantissa * scale, half = shift ? (unsigned __int128)1 << (shift - 1) : 0;
        unsigned __int128 digits = (exact + half) >> shift;
        if (half && (digits << shift) - exact == half && digits & 1) /* half way: to the even digit */
            digits--;
        unsigned __int128 near = digits << shift;
        unsigned __int128 off = near > exact ? near - exact : exact - near;
        if (2 * off > scale)
            continue;
        if (2 * off == scale || (is_power_of_two && 4 * off >= scale) || digits > UINT64_MAX)
            return false;
        char text[24];
        int first = sizeof text, place = 0;
        for (uint64_t rest = (uint64_t)digits; rest || place <= decimals; rest /= 10, place++) {
            if (place && place == decimals)
                text[--first] = '.';
            text[--first] = (char)('0' + rest % 10);
        }
        return put(column, text + first, (int64_t)sizeof text - first) && (decimals || put_text(column, ".0"));
    }
    return false;
}

/* A number of so many bits of fraction, as it stands in the bytes. Those that Python writes with an exponent are left
 * to it, and those that may be. */
static bool put_float(Column *column, uint64_t bits, int fraction_bits, int exponent_bits, bool is_json) {
    uint64_t fraction = bits & (((uint64_t)1 << fraction_bits) - 1);
    int exponent_max = (1 << exponent_bits) - 1, exponent = (int)(bits >> fraction_bits) & exponent_max;
    bool is_negative = bits >> (fraction_bits + exponent_bits) & 1;
    if (exponent == exponent_max) {
        const char *text = fraction ? "nan" : is_negative ? "-inf" : "inf";
        return put_quote(column, is_json) && put_text(column, text) && put_quote(column, is_json);
    }
    if (is_negative && !put_text(column, "-"))
        return false;
    if (!exponent)
        return !fraction && put_text(column, "0.0");
    int power = exponent - exponent_max / 2; /* of two */
    if (power < -13 || power > fraction_bits) /* 2**-13 is the first power above 0.0001 */
        return false;
    return put_fraction(column, fraction | (uint64_t)1 << fraction_bits, fraction_bits - power, !fraction);
}
#else
static bool put_float(Column *column, uint64_t bits, int fraction_bits, int exponent_bits, bool is_json) {
    (void)column, (void)bits, (void)fraction_bits, (void)exponent_bits, (void)is_json;
    return false;
}
#endif

static bool put_payload(Column *column, Reader *reader, uint8_t code, int depth, bool is_json);

static bool put_list(Column *column, Reader content, int width, int depth) {
    uint64_t count;
    if (!take_number(&content, width, &count) || !put_text(column, "["))
        return false;
    for (uint64_t index = 0; index < count; index++)
        if ((index && !put_text(column, ",")) || !put_value(column, &content, depth, true))
            return false;
    return content.at == content.end && put_text(column, "]");
}

/* Of values of one type, each of which takes bytes: others have nothing to say. */
static bool put_array(Column *column, Reader content, int width, int depth) {
    uint64_t count;
    uint8_t code;
    if (!take_number(&content, width, &count) || !count || !take_code(&content, &code) || code < UBYTE ||
        !put_text(column, "["))
        return false;
    for (uint64_t index = 0; index < count; index++)
        if ((index && !put_text(column, ",")) || !put_payload(column, &content, code, depth, true))
            return false;
    return content.at == content.end && put_text(column, "]");
}

/* With keys that are text, none of them twice: else it would matter which of them Python keeps. */
static bool put_map(Column *column, Reader content, int width, int depth) {
    Reader keys[KEYS_MAX];
    uint64_t count;
    if (!take_number(&content, width, &count) || count % 2 || count / 2 > KEYS_MAX || !put_text(column, "{"))
        return false;
    for (uint64_t index = 0; index < count / 2; index++) {
        uint8_t code;
        Reader key;
        if (!take_code(&content, &code) || !is_text(code) || !take_text(&content, code, &key))
            return false;
        for (uint64_t other = 0; other < index; other++)
            if (is_equal(key, (const char *)keys[other].at, left(&keys[other])))
                return false;
        keys[index] = key;
        if ((index && !put_text(column, ",")) || !put_json_text(column, key) || !put_text(column, ":") ||
            !put_value(column, &content, depth, true))
            return false;
    }
    return content.at == content.end && put_text(column, "}");
}

/* The value after its code; `depth` tells how many levels may follow. */
static bool put_payload(Column *column, Reader *reader, uint8_t code, int depth, bool is_json) {
    uint64_t bits;
    int64_t number;
    Reader content;
    switch (code) {
    case NULL_VALUE:
        return put_text(column, "null");
    case TRUE_VALUE:
        return put_text(column, "true");
    case FALSE_VALUE:
        return put_text(column, "false");
    case BOOLEAN:
        return take_number(reader, 1, &bits) && bits < 2 && put_text(column, bits ? "true" : "false");
    case ULONG:
        return take_number(reader, 8, &bits) && put_unsigned(column, bits);
    case TIMESTAMP:
        return take_number(reader, 8, &bits) && put_quote(column, is_json) && put_timestamp(column, (int64_t)bits) &&
               put_quote(column, is_json);
    case FLOAT:
        return take_number(reader, 4, &bits) && put_float(column, bits, 23, 8, is_json);
    case DOUBLE:
        return take_number(reader, 8, &bits) && put_float(column, bits, 52, 11, is_json);
    case CHAR:
        return take_number(reader, 4, &bits) && put_char(column, bits, is_json);
    case UUID:
        return take_part(reader, 16, &content) && put_quote(column, is_json) && put_uuid(column, content) &&
               put_quote(column, is_json);
    case DECIMAL_32: case DECIMAL_64: case DECIMAL_128:
        return take_part(reader, code == DECIMAL_32 ? 4 : code == DECIMAL_64 ? 8 : 16, &content) &&
               put_quote(column, is_json) && put_text(column, "0x") && put_hexadecimal(column, content) &&
               put_quote(column, is_json);
    case BINARY_8: case BINARY_32:
        return take_sized(reader, size_width(code), &content) && put_quote(column, is_json) &&
               put_base64(column, content) && put_quote(column, is_json);
    case STRING_8: case SYMBOL_8: case STRING_32: case SYMBOL_32:
        if (!take_text(reader, code, &content))
            return false;
        return is_json ? put_json_text(column, content) : put(column, content.at, left(&content));
    case LIST_0:
        return depth > 0 && put_text(column, "[]");
    case LIST_8: case LIST_32:
        return depth > 0 && take_sized(reader, size_width(code), &content) &&
               put_list(column, content, size_width(code), depth - 1);
    case MAP_8: case MAP_32:
        return depth > 0 && take_sized(reader, size_width(code), &content) &&
               put_map(column, content, size_width(code), depth - 1);
    case ARRAY_8: case ARRAY_32:
        return depth > 0 && take_sized(reader, size_width(code), &content) &&
               put_array(column, content, size_width(code), depth - 1);
    default:
        return take_integer(reader, code, &number) && put_integer(column, number);
    }
}

/* The descriptor of a value, if it is a symbol or a ulong, as all that mean something are. */
static bool skip_descriptor(Reader *reader) {
    uint8_t code;
    uint64_t bits;
    Reader name;
    if (!take_code(reader, &code))
        return false;
    switch (code) {
    case ULONG_0:
        return true;
    case SMALL_ULONG:
        return take_number(reader, 1, &bits);
    case ULONG:
        return take_number(reader, 8, &bits);
    case SYMBOL_8: case SYMBOL_32:
        return take_text(reader, code, &name);
    default:
        return false;
    }
}

/* The text of the next value; null is "null", which callers look for first where it is not. */
bool put_value(Column *column, Reader *reader, int depth, bool is_json) {
    uint8_t code;
    if (!take_code(reader, &code))
        return false;
    for (; code == DESCRIBED; depth--)
        if (depth <= 0 || !skip_descriptor(reader) || !take_code(reader, &code))
            return false;
    return put_payload(column, reader, code, depth, is_json);
}
