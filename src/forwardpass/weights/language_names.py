"""Names and codes of languages: ISO 639-1 and 639-3 codes (and the few others that models use), and English names.

Codes of the same language, or of a language and the one member of it that models mean by it (Arabic and Standard
Arabic, Malay and Standard Malay), stand together.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ParameterError

_LANGUAGES = """
ace Acehnese; acm Mesopotamian Arabic; acq Ta'izzi-Adeni Arabic; aeb Tunisian Arabic; af afr Afrikaans;
ajp South Levantine Arabic; ak aka Akan; am amh Amharic; apc North Levantine Arabic;
ar ara arb Arabic/Standard Arabic; ars Najdi Arabic; ary Moroccan Arabic; arz Egyptian Arabic; as asm Assamese;
ast Asturian; awa Awadhi; ay aym ayr Aymara/Central Aymara; azb South Azerbaijani;
az aze azj Azerbaijani/North Azerbaijani; ba bak Bashkir; bm bam Bambara; ban Balinese; be bel Belarusian; bem Bemba;
bn ben Bengali/Bangla; bho Bhojpuri; bjn Banjar; bo bod tib Tibetan/Standard Tibetan; br bre Breton; bs bos Bosnian;
bug Buginese; bg bul Bulgarian; ca cat Catalan/Valencian; ceb Cebuano; cs ces cze Czech; cjk Chokwe;
ckb Central Kurdish/Sorani; crh Crimean Tatar; cy cym wel Welsh; da dan Danish; de deu ger German;
din dik Dinka/Southwestern Dinka; dyu Dyula; dz dzo Dzongkha; el ell gre Greek; en eng English; eo epo Esperanto;
et est ekk Estonian; eu eus baq Basque; ee ewe Ewe; fo fao Faroese; fa fas per pes Persian/Farsi/Western Persian;
fj fij Fijian; fi fin Finnish; fon Fon; fr fra fre French; fur Friulian; ff ful fuv Fula/Fulah/Nigerian Fulfulde;
fy fry Western Frisian/Frisian; gd gla Scottish Gaelic; ga gle Irish; gl glg Galician; gn grn Guarani;
gu guj Gujarati; ht hat Haitian Creole/Haitian; ha hau Hausa; he iw heb Hebrew; hi hin Hindi; hne Chhattisgarhi;
hr hrv Croatian; hu hun Hungarian; hy hye arm Armenian; ig ibo Igbo; ilo Ilocano; id ind Indonesian;
is isl ice Icelandic; it ita Italian; jv jav Javanese; ja jpn Japanese; kab Kabyle; kac Jingpho; kam Kamba;
kn kan Kannada; ks kas Kashmiri; ka kat geo Georgian; kr kau knc Kanuri/Central Kanuri; kk kaz Kazakh;
kbp Kabiye/Kabiyè; kea Kabuverdianu; km khm Khmer; ki kik Kikuyu; rw kin Kinyarwanda; ky kir Kyrgyz/Kirghiz;
kmb Kimbundu; kg kon Kikongo/Kongo; ko kor Korean; ku kur kmr Kurdish/Northern Kurdish/Kurmanji; la lat Latin;
lo lao Lao; lv lav lvs Latvian/Standard Latvian; lij Ligurian; li lim Limburgish; ln lin Lingala; lt lit Lithuanian;
lmo Lombard; ltg Latgalian; lb ltz Luxembourgish; lua Luba-Kasai; lg lug Ganda/Luganda; luo Luo; lus Mizo; mag Magahi;
mai Maithili; lmo Lombard; ml mal Malayalam; mr mar Marathi; min Minangkabau; mk mkd mac Macedonian;
mg mlg plt Malagasy/Plateau Malagasy; mt mlt Maltese; mni Meitei/Manipuri; mn mon khk Mongolian/Halh Mongolian;
mos Mossi; mi mri mao Maori/Māori; ms msa may zsm Malay/Standard Malay; my mya bur Burmese; nl nld dut Dutch/Flemish;
nn nno Norwegian Nynorsk/Nynorsk; no nor nb nob Norwegian/Norwegian Bokmål/Bokmål; ne nep npi Nepali;
ns nso Northern Sotho/Pedi; nus Nuer; ny nya Nyanja/Chichewa; oc oci Occitan; om orm gaz Oromo/West Central Oromo;
or ori ory Odia/Oriya; pag Pangasinan; pa pan Punjabi/Panjabi/Eastern Panjabi; pap Papiamento; pl pol Polish;
pt por Portuguese; prs Dari; ps pus pbt Pashto/Southern Pashto; qu que quy Quechua/Ayacucho Quechua;
ro ron rum mo Romanian/Moldovan; rn run Rundi; ru rus Russian; sg sag Sango; sa san Sanskrit; sat Santali;
scn Sicilian; shn Shan; si sin Sinhala/Sinhalese; sk slk slo Slovak; sl slv Slovenian/Slovene; sm smo Samoan;
sn sna Shona; sd snd Sindhi; so som Somali; st sot Southern Sotho/Sesotho; es spa Spanish/Castilian;
sq sqi alb als Albanian/Tosk Albanian; sc srd Sardinian; sr srp Serbian; ss ssw Swati/Swazi; su sun Sundanese;
sv swe Swedish; sw swa swh Swahili; szl Silesian; ta tam Tamil; tt tat Tatar; te tel Telugu; tg tgk Tajik;
tl tgl fil Tagalog/Filipino; th tha Thai; ti tir Tigrinya; taq Tamasheq; tpi Tok Pisin; tn tsn Tswana; ts tso Tsonga;
tk tuk Turkmen; tum Tumbuka; tr tur Turkish; tw twi Twi; tzm Central Atlas Tamazight; ug uig Uyghur; uk ukr Ukrainian;
umb Umbundu; ur urd Urdu; uz uzb uzn Uzbek/Northern Uzbek; vec Venetian; vi vie Vietnamese; war Waray; wo wol Wolof;
xh xho Xhosa; yi yid ydd Yiddish/Eastern Yiddish; yo yor Yoruba; yue Cantonese/Yue Chinese;
zh zho chi cmn Chinese/Mandarin; zu zul Zulu
"""
_WRITTEN = {"simplified chinese": "zho_Hans", "traditional chinese": "zho_Hant"}


def _read() -> tuple[dict[str, frozenset[str]], dict[str, str]]:
    codes: dict[str, frozenset[str]] = {}
    names: dict[str, str] = {}
    for entry in _LANGUAGES.replace("\n", " ").split(";"):
        words = entry.split()
        count = next(i for i, word in enumerate(words) if not word.islower())
        spelled, together = " ".join(words[count:]).split("/"), frozenset(words[:count])
        codes |= dict.fromkeys([*words[:count], *(name.lower() for name in spelled)], together)
        names |= dict.fromkeys(words[:count], spelled[0])
    return codes, names


_CODES, _NAMES = _read()


def codes_of(language: str) -> frozenset[str]:
    """Every code of the language that has this code or English name, in any case; empty for an unknown one."""
    return _CODES.get(language.lower(), frozenset())


def matching(language: str, codes: Iterable[str]) -> list[str]:
    """Those of a model's codes that mean a language given by that code, another one or its English name, the best
    first: one that is written the same or, of several, one in the script that is said. Raises ParameterError for what
    is no text."""
    if not isinstance(language, str):
        raise ParameterError(f"a language is a text, its code or English name; found {type(language).__name__}")
    codes, wanted = list(dict.fromkeys(codes)), language.strip().strip("<>_")
    exact = [code for code in codes if code.lower() == wanted.lower()]
    if exact:
        return exact
    first, *rest = subtags(wanted)
    same = codes_of(wanted) or codes_of(first) or {first}
    found = [code for code in codes if subtags(code)[0] in same]
    return sorted(found, key=lambda code: not set(rest) & set(subtags(code)[1:]))


def name_of(code: str) -> str | None:
    """The English name of a language by a code, which may go on after the language ("de", "deu_Latn", "pt_BR")."""
    return _NAMES.get(subtags(code)[0])


def subtags(language: str) -> list[str]:
    """The parts of a code in small letters: "zho_Hant" and "zh-Hant" have two, the second being how it is written."""
    language = _WRITTEN.get(language.lower(), language)
    return language.lower().replace("_", "-").split("-")
