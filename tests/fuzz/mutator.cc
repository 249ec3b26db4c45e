#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"

namespace cadre::fuzz {
namespace {

constexpr size_t kMaxChanges = 8;
constexpr size_t kMaxInserted = 32;

std::vector<std::string> NotEmpty(std::vector<std::string> corpus) {
  if (corpus.empty()) corpus.emplace_back();
  return corpus;
}

}  // namespace

Mutator::Mutator(std::vector<std::string> corpus, uint64_t seed, size_t max_bytes)
    : corpus_(NotEmpty(std::move(corpus))), max_bytes_(max_bytes), random_(seed) {}

const std::string& Mutator::Next() {
  // Some inputs continue from the previous one, so that changes accumulate.
  if (Below(4) != 0) input_ = corpus_[Below(corpus_.size())];
  const size_t changes = 1 + Below(kMaxChanges);
  for (size_t i = 0; i < changes; ++i) Change(input_);
  if (input_.size() > max_bytes_) input_.resize(max_bytes_);
  return input_;
}

size_t Mutator::Below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }

void Mutator::Change(std::string& input) {
  using Member = void (Mutator::*)(std::string&);
  static constexpr std::array<Member, 11> kChanges = {
      &Mutator::FlipBits,
      &Mutator::FlipBits,
      &Mutator::SetByte,
      &Mutator::Truncate,
      &Mutator::RemovePart,
      &Mutator::RepeatPart,
      &Mutator::InsertBytes,
      &Mutator::Splice,
      &Mutator::CorruptBinaryInteger,
      &Mutator::CorruptBinaryInteger,
      &Mutator::CorruptDecimalDigits,
  };
  (this->*kChanges[Below(kChanges.size())])(input);
}

void Mutator::FlipBits(std::string& input) {
  if (input.empty()) return;
  char& byte = input[Below(input.size())];
  byte = static_cast<char>(byte ^ 1 << Below(8));
}

void Mutator::SetByte(std::string& input) {
  if (!input.empty()) input[Below(input.size())] = static_cast<char>(Below(256));
}

void Mutator::Truncate(std::string& input) { input.resize(Below(input.size() + 1)); }

void Mutator::RemovePart(std::string& input) {
  const size_t begin = Below(input.size() + 1);
  input.erase(begin, Below(input.size() - begin + 1));
}

void Mutator::RepeatPart(std::string& input) {
  if (input.empty() || input.size() >= max_bytes_) return;
  const size_t begin = Below(input.size());
  const std::string part = input.substr(begin, 1 + Below(input.size() - begin));
  input.insert(Below(input.size() + 1), part);
}

void Mutator::InsertBytes(std::string& input) {
  std::string bytes(1 + Below(kMaxInserted), '\0');
  for (char& byte : bytes) byte = static_cast<char>(Below(256));
  input.insert(Below(input.size() + 1), bytes);
}

// Appends the end of another input to the beginning of this one.
void Mutator::Splice(std::string& input) {
  const std::string& other = corpus_[Below(corpus_.size())];
  input.resize(Below(input.size() + 1));
  input.append(other, Below(other.size() + 1), std::string::npos);
}

// Replaces an integer of one to eight bytes, in either byte order, by a number that is likely to be
// a wrong length.
void Mutator::CorruptBinaryInteger(std::string& input) {
  const size_t width = size_t{1} << Below(4);
  if (input.size() < width) return;
  const std::array<uint64_t, 10> numbers = {
      0,           1,           input.size(),       input.size() - 1,   input.size() + 1,
      0x7fffffffU, 0xffffffffU, 0x7fffffffffffffff, 0xffffffffffffffff, uint64_t{1} << Below(64)};
  const uint64_t number = numbers[Below(numbers.size())];
  const size_t begin = Below(input.size() - width + 1);
  const bool high_first = Below(2) == 0;
  for (size_t i = 0; i < width; ++i) {
    const size_t shift = 8 * (high_first ? width - 1 - i : i);
    input[begin + i] = static_cast<char>(number >> shift);
  }
}

// Replaces a run of digits, in which tar and JSON write lengths, by another of the same width.
void Mutator::CorruptDecimalDigits(std::string& input) {
  const auto first =
      std::find_if(input.begin() + Below(input.size()), input.end(), absl::ascii_isdigit);
  const char only = "079"[Below(3)];
  const bool repeated = Below(2) == 0;
  for (auto digit = first; digit != input.end() && absl::ascii_isdigit(*digit); ++digit) {
    *digit = repeated ? only : static_cast<char>('0' + Below(10));
  }
}

}  // namespace cadre::fuzz
