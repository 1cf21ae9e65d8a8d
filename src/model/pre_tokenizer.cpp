#include "model/pre_tokenizer.h"

#include <algorithm>
#include <deque>
#include <memory>

#include "core/check.h"
#include "model/json_object.h"
#include "model/utf8.h"

namespace halfbyte::model {
namespace {

using checkpoint::Json;
using checkpoint::quote;

// ByteLevel's own pattern, GPT-2's.
constexpr std::string_view byte_level_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

// One Split at work.
class PreTokenizer::Splitter {
  public:
    explicit Splitter(const Split& split) : split_(split) {
        if (const auto* pattern = std::get_if<Pattern>(&split.pattern))
            matcher_ = std::make_unique<Matcher>(*pattern);
    }

    void run(std::string_view text, std::vector<std::string_view>& pieces) {
        cut(text);
        apply_behavior();
        for (const Range& range : ranges_) {
            if (range.begin < range.end && !(range.match && split_.behavior == Behavior::removed))
                pieces.push_back(text.substr(range.begin, range.end - range.begin));
        }
    }

  private:
    struct Range {
        size_t begin, end;
        bool match;
    };

    // ranges_ becomes the whole text, in order, as matches and what lies between them.
    void cut(std::string_view text) {
        ranges_.clear();
        size_t done = 0;
        const auto found = [&](size_t begin, size_t end) {
            if (done < begin) ranges_.push_back({done, begin, split_.invert});
            ranges_.push_back({begin, end, !split_.invert});
            done = end;
        };
        if (matcher_) {
            matcher_->for_each_match(text, found);
        } else if (const auto* wanted = std::get_if<std::string>(&split_.pattern)) {
            for (size_t at = 0; (at = text.find(*wanted, at)) != text.npos; at += wanted->size())
                found(at, at + wanted->size());
        } else {
            for (size_t at = 0; at < text.size();) {
                const Utf8Char c = utf8_at(text, at);
                if (is_numeric(c.code)) found(at, at + c.length);
                at += c.length;
            }
        }
        if (done < text.size()) ranges_.push_back({done, text.size(), split_.invert});
    }

    // Joins neighbours as the behavior says, by the rules of Hugging Face's tokenizers: a match right behind
    // another match (before it, for merged_with_next) stays alone.
    void apply_behavior() {
        const Behavior behavior = split_.behavior;
        if (behavior == Behavior::isolated || behavior == Behavior::removed) return;
        const bool backwards = behavior == Behavior::merged_with_next;
        if (backwards) std::reverse(ranges_.begin(), ranges_.end());
        std::vector<Range> joined;
        bool previous_match = false;
        for (const Range& range : ranges_) {
            const bool join = behavior == Behavior::contiguous ? range.match == previous_match
                                                               : range.match && !previous_match;
            if (join && !joined.empty()) {
                (backwards ? joined.back().begin : joined.back().end) = backwards ? range.begin : range.end;
            } else {
                joined.push_back(range);
            }
            previous_match = range.match;
        }
        if (backwards) std::reverse(joined.begin(), joined.end());
        ranges_ = std::move(joined);
    }

    const Split& split_;
    std::unique_ptr<Matcher> matcher_;
    std::vector<Range> ranges_;
};

PreTokenizer::Behavior PreTokenizer::behavior_of(const std::string& name, const std::string& file) {
    if (name == "Isolated") return Behavior::isolated;
    if (name == "Removed") return Behavior::removed;
    if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
    if (name == "MergedWithNext") return Behavior::merged_with_next;
    if (name == "Contiguous") return Behavior::contiguous;
    fail(ErrorKind::malformed,
         "{}: pre_tokenizer Split has the behavior {}; known are Isolated, Removed, "
         "MergedWithPrevious, MergedWithNext, Contiguous",
         file, quote(name));
}

PreTokenizer::PreTokenizer(const Json& json, const std::string& file) {
    add(json, file);
    check(byte_level_, ErrorKind::unsupported,
          "{}: the pre_tokenizer has no ByteLevel; a vocabulary over characters (SentencePiece style) is not "
          "supported",
          file);
}

void PreTokenizer::add(const Json& json, const std::string& file) {
    const JsonObject fields(json, "pre_tokenizer", file);
    const std::string& type = fields.text("type");
    check(type == "Sequence" || !byte_level_, ErrorKind::unsupported,
          "{}: pre_tokenizer {} stands behind ByteLevel; ByteLevel must be the last", file, quote(type));
    constexpr size_t splits_limit = 64;  // far more than any that tokenizers have
    check(splits_.size() < splits_limit, ErrorKind::unsupported, "{}: more than {} pre_tokenizers", file,
          splits_limit);
    if (type == "Sequence") {
        for (const Json& step : fields.array("pretokenizers")) add(step, file);
    } else if (type == "ByteLevel") {
        byte_level_ = true;
        add_prefix_space_ = fields.flag("add_prefix_space");
        if (fields.flag("use_regex", true)) {
            byte_level_split_ = Split{Pattern(byte_level_pattern, file), Behavior::isolated, false};
        }
    } else if (type == "Digits") {
        splits_.push_back({AnyNumeric{},
                           fields.flag("individual_digits") ? Behavior::isolated : Behavior::contiguous,
                           false});
    } else if (type == "Split") {
        const JsonObject pattern = fields.child("pattern");
        const Behavior behavior = behavior_of(fields.text("behavior"), file);
        const bool invert = fields.flag("invert");
        if (pattern.find("Regex")) {
            splits_.push_back({Pattern(pattern.text("Regex"), file), behavior, invert});
        } else {
            check(!pattern.text("String").empty(), ErrorKind::unsupported,
                  "{}: pre_tokenizer Split by an empty string", file);
            splits_.push_back({pattern.text("String"), behavior, invert});
        }
    } else {
        fail(ErrorKind::unsupported,
             "{}: pre_tokenizer {} is not supported{}; those that are: ByteLevel, Split, Digits, Sequence",
             file, quote(type), type == "Metaspace" ? " (a SentencePiece-style vocabulary)" : "");
    }
}

void PreTokenizer::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
    std::vector<std::string_view> pieces{text}, cut;
    const auto apply = [&](const Split& split) {
        Splitter splitter(split);
        for (const std::string_view part : pieces) splitter.run(part, cut);
        pieces.swap(cut);
        cut.clear();
    };
    for (const Split& split : splits_) apply(split);
    // The prefix is put before every piece, not only the first: this is what the files' other readers do.
    std::deque<std::string> prefixed;
    if (add_prefix_space_) {
        for (std::string_view& part : pieces) {
            if (!part.starts_with(' ')) part = prefixed.emplace_back(fmt::format(" {}", part));
        }
    }
    if (byte_level_split_) apply(*byte_level_split_);
    for (const std::string_view part : pieces) piece(part);
}

}  // namespace halfbyte::model
