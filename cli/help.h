// Help and usage, generated from the table of verbs (cli/verb.h).
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "cli/verb.h"

namespace cadre {

// "--name", or "-o" for a name of one letter.
std::string FlagName(const Flag& flag);
// "cadre local RUN.textproto [flags]"; required flags are shown.
std::string Usage(const Verb& verb);

// Help on everything, and on one verb.
std::string GeneralHelp();
std::string VerbHelp(const Verb& verb);

}  // namespace cadre
