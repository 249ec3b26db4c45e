// Which mutant is active: instrumented sources (sites.py) contain all mutants, and the environment
// variable CADRE_MUTANT chooses one by its number. Without it, instrumented sources behave like the
// originals. If CADRE_MUTANTS_REACHED names a file, the numbers of the mutants that were reached
// are written there at exit.
//
// Thread-safe. The environment is read once, before the first use.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <fstream>

namespace cadre::mutation {

class Mutants {
 public:
  Mutants() {
    if (const char* number = std::getenv("CADRE_MUTANT")) active_ = std::atoi(number);
  }
  ~Mutants() {
    const char* path = std::getenv("CADRE_MUTANTS_REACHED");
    if (path == nullptr) return;
    std::ofstream file(path);
    for (size_t number = 0; number < reached_.size(); ++number) {
      if (reached_[number]) file << number << '\n';
    }
  }

  bool IsActive(int number) {
    reached_[static_cast<size_t>(number)].store(true, std::memory_order_relaxed);
    return active_ == number;
  }

 private:
  int active_ = 0;
  // MAX_OF_FILE * MAX_FILES of generate.py.
  std::array<std::atomic<bool>, 131072> reached_ = {};
};

inline Mutants mutants;

inline bool Is(int number) { return mutants.IsActive(number); }

// The relational operators; the mutant differs where the operands are equal.
template <typename Left, typename Right>
bool Less(int number, const Left& left, const Right& right) {
  return Is(number) ? left <= right : left < right;
}
template <typename Left, typename Right>
bool LessOrEqual(int number, const Left& left, const Right& right) {
  return Is(number) ? left < right : left <= right;
}
template <typename Left, typename Right>
bool Greater(int number, const Left& left, const Right& right) {
  return Is(number) ? left >= right : left > right;
}
template <typename Left, typename Right>
bool GreaterOrEqual(int number, const Left& left, const Right& right) {
  return Is(number) ? left > right : left >= right;
}

// An operand of && or || that compares an iterator with end(). The mutant leaves it out, and would
// dereference the iterator where the operand is not `neutral`: it fails there as a checked iterator
// does, because what memory beyond the end holds is chance.
inline bool Unchecked(int number, bool operand, bool neutral) {
  if (Is(number) && operand != neutral) std::abort();
  return operand;
}

// A constant, one more, twice as much, and 0; the number of a mutant that would repeat another one
// is 0.
template <typename Value>
Value Constant(int one_more, int twice, int zero, Value value) {
  if (one_more != 0 && Is(one_more)) return value + 1;
  if (twice != 0 && Is(twice)) return value * 2;
  if (zero != 0 && Is(zero)) return 0;
  return value;
}

}  // namespace cadre::mutation
