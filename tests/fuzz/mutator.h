// Turns well-formed inputs into wrong ones: bit flips, cuts, splices, lengths that lie.
//
// Equal seeds give equal inputs.
//
// Thread-compatible. Owns its copy of the corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace cadre::fuzz {

class Mutator {
 public:
  // Inputs are cut at `max_bytes`. An empty corpus is one of the empty input.
  Mutator(std::vector<std::string> corpus, uint64_t seed, size_t max_bytes);

  // The next input: one of the corpus, or the one before, with one to eight changes.
  const std::string& Next();

 private:
  size_t Below(size_t bound);
  void Change(std::string& input);
  void FlipBits(std::string& input);
  void SetByte(std::string& input);
  void Truncate(std::string& input);
  void RemovePiece(std::string& input);
  void RepeatPiece(std::string& input);
  void InsertBytes(std::string& input);
  void Splice(std::string& input);
  void LieAboutNumber(std::string& input);
  void LieAboutDigits(std::string& input);

  const std::vector<std::string> corpus_;
  const size_t max_bytes_;
  std::mt19937_64 random_;
  std::string input_;
};

}  // namespace cadre::fuzz
