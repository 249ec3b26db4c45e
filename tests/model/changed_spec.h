// Changes to the spec of the demo, and the problems that validation must find in them.
#pragma once

#include <string>
#include <vector>

#include "proto/cadre/v1/run.pb.h"

namespace cadre::testing {

// Legal with the rest of the demo.
inline constexpr char kTokenFiles[] = "data { token_files { train: '/train' test: '/test' } }";

// The spec of the demo without the fields in `cleared` ("a.b, c"; may be empty), merged with
// `text`.
v1::RunSpec Changed(const std::string& cleared, const std::string& text);

struct Violation {
  std::string cleared;
  std::string text;
  std::string field;
  std::string message;
};

// Expects that each of these changes to the demo violates one rule.
void ExpectProblems(const std::vector<Violation>& violations);

}  // namespace cadre::testing
