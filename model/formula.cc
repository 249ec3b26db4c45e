// Formulas in the blocks of a run file (named groups of layers with parameters), such as
// "2 * (width - 1)": 64-bit integers, + - * / and parentheses, evaluated by recursive descent while
// they are parsed.
//
// The results become dimensions of layers, so nothing is rounded or wrapped: a division must be
// exact, and every overflow is an error. The depth of parentheses is limited because the recursion
// uses the stack and formulas come from files.
#include "model/formula.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace cadre {
namespace {

// Maximum depth of nested parentheses.
constexpr int kMaxDepth = 50;

bool IsNameCharacter(char c) { return absl::ascii_islower(c) || c == '_'; }

// sum: product { (+|-) product };  product: value { (*|/) value };  value: number, name or ( sum ).
class Evaluation {
 public:
  Evaluation(absl::string_view formula, const std::map<std::string, int64_t>& values)
      : formula_(formula), rest_(formula), values_(values) {}

  absl::StatusOr<int64_t> Run() {
    CADRE_ASSIGN_OR_RETURN(const int64_t value, Sum(0));
    if (char ignored = 0; Peek(&ignored)) return Unexpected();
    return value;
  }

 private:
  // Sets `c` to the next character that is not a space, without consuming it. Returns false at the
  // end.
  bool Peek(char* c) {
    rest_ = absl::StripLeadingAsciiWhitespace(rest_);
    if (rest_.empty()) return false;
    *c = rest_.front();
    return true;
  }

  bool ConsumeOneOf(absl::string_view characters, char* c) {
    if (!Peek(c) || characters.find(*c) == absl::string_view::npos) return false;
    rest_.remove_prefix(1);
    return true;
  }

  template <typename Predicate>
  absl::string_view ConsumeWhile(Predicate belongs) {
    size_t length = 0;
    while (length < rest_.size() && belongs(rest_[length])) ++length;
    const absl::string_view taken = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return taken;
  }

  template <typename... Parts>
  absl::Status Error(const Parts&... message) const {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(formula_), "' ", message...));
  }

  absl::Status Unexpected() const {
    if (rest_.empty()) return Error("ends where a number, a name or '(' is expected");
    return Error("is not a valid formula: unexpected '", absl::CHexEscape(rest_), "'");
  }

  absl::StatusOr<int64_t> Sum(int depth) {
    CADRE_ASSIGN_OR_RETURN(int64_t left, Product(depth));
    for (char sign = 0; ConsumeOneOf("+-", &sign);) {
      CADRE_ASSIGN_OR_RETURN(const int64_t right, Product(depth));
      const bool overflow = sign == '+' ? __builtin_add_overflow(left, right, &left)
                                        : __builtin_sub_overflow(left, right, &left);
      if (overflow) return Error("is too large");
    }
    return left;
  }

  absl::StatusOr<int64_t> Product(int depth) {
    CADRE_ASSIGN_OR_RETURN(int64_t left, Value(depth));
    for (char sign = 0; ConsumeOneOf("*/", &sign);) {
      CADRE_ASSIGN_OR_RETURN(const int64_t right, Value(depth));
      if (sign == '*') {
        if (__builtin_mul_overflow(left, right, &left)) return Error("is too large");
        continue;
      }
      if (right == 0) return Error("divides by 0");
      // The only quotient that overflows; its remainder is undefined as well.
      if (right == -1 && left == INT64_MIN) return Error("is too large");
      if (left % right != 0) {
        return Error("divides ", left, " by ", right, ", which leaves a remainder");
      }
      left /= right;
    }
    return left;
  }

  absl::StatusOr<int64_t> Value(int depth) {
    if (char open = 0; ConsumeOneOf("(", &open)) {
      if (depth >= kMaxDepth) return Error("has more than ", kMaxDepth, " nested parentheses");
      CADRE_ASSIGN_OR_RETURN(const int64_t value, Sum(depth + 1));
      if (char close = 0; !ConsumeOneOf(")", &close)) {
        return rest_.empty() ? Error("is missing a ')'") : Unexpected();
      }
      return value;
    }
    if (const absl::string_view digits =
            ConsumeWhile([](char c) { return absl::ascii_isdigit(c); });
        !digits.empty()) {
      int64_t value = 0;
      if (!absl::SimpleAtoi(digits, &value)) return Error("is too large");
      return value;
    }
    if (const absl::string_view name = ConsumeWhile(IsNameCharacter); !name.empty()) {
      return Lookup(std::string(name));
    }
    return Unexpected();
  }

  absl::StatusOr<int64_t> Lookup(const std::string& name) const {
    if (const auto found = values_.find(name); found != values_.end()) return found->second;
    if (values_.empty()) return Error("uses '", name, "', but the block has no parameters");
    return Error("uses '", name, "', but the parameters of the block are ",
                 absl::StrJoin(values_, ", ", [](std::string* out, const auto& value) {
                   absl::StrAppend(out, value.first);
                 }));
  }

  const absl::string_view formula_;
  absl::string_view rest_;
  const std::map<std::string, int64_t>& values_;
};

}  // namespace

absl::StatusOr<int64_t> Evaluate(absl::string_view formula,
                                 const std::map<std::string, int64_t>& values) {
  return Evaluation(formula, values).Run();
}

}  // namespace cadre
