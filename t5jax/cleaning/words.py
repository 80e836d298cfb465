"""What the rules know about languages: end marks, abbreviations, phrases of web pages, bad words.

C4's English rules and strings are those of arXiv:1910.10683, section 2.2. The lists of bad words
are short and explicit on purpose: a longer list drops ordinary text, as C4's English one does in
Danish, where `slut` is "end", `fag` "subject" and `tit` "often".
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Words:
  """The words of a language.

  Attributes:
    end_marks: what a sentence may end with.
    policy_strings: lower-case parts of lines about cookies, terms and such.
    bad_words: lower-case words, one of which is enough to drop a page.
    abbreviations: lower-case words, without their last period, that end no sentence.
  """

  end_marks: tuple
  policy_strings: tuple = ()
  bad_words: tuple = ()
  abbreviations: tuple = ()


_ENGLISH_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies",
                   "use of cookies", "use cookies")

LANGUAGES = {
    "en": Words(
        end_marks=(".", "?", "!", '"'),
        policy_strings=_ENGLISH_POLICY,
        bad_words=("blowjob", "bukkake", "cumshot", "cunt", "deepthroat", "dildo", "fag", "faggot",
                   "fuck", "fucking", "gangbang", "hentai", "milf", "nigger", "orgy", "porn",
                   "pornography", "pussy", "rimjob", "sex", "shemale", "shit", "slut", "tit", "tits",
                   "whore", "xxx"),
        abbreviations=("mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "vs", "e.g", "i.e", "etc",
                       "no", "vol", "fig", "inc", "ltd", "co", "u.s")),
    "da": Words(
        end_marks=(".", "?", "!", '"', "”", "»", "«", "’", "…"),
        policy_strings=(*_ENGLISH_POLICY, "privatlivspolitik", "cookiepolitik", "brug af cookies",
                        "bruger cookies", "anvender cookies", "accepter cookies",
                        "handelsbetingelser", "persondatapolitik", "læs mere"),
        bad_words=("fisse", "fisser", "kusse", "kusser", "kneppe", "knepper", "kneppede", "luder",
                   "ludere", "pikslikker", "pornofilm", "røvhul", "røvpule", "sædafgang", "cumshot",
                   "gangbang", "milf", "xxx"),
        abbreviations=("bl.a", "ca", "d.v.s", "dvs", "dr", "e.kr", "eks", "etc", "evt", "f.eks",
                       "f.kr", "fr", "hhv", "hr", "inkl", "jf", "kap", "kl", "kr", "m.fl", "m.m",
                       "m.v", "mht", "mio", "mr", "nr", "osv", "pct", "pga", "s", "sml", "st", "stk",
                       "tlf", "t.d", "vedr")),
}
OTHER = Words(end_marks=LANGUAGES["da"].end_marks, policy_strings=_ENGLISH_POLICY)
