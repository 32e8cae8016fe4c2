"""Words and wordings of the embedded corpus: everything here is invented for this project.

A kind is one thing that is asked about an author. Its wordings hold slots named after the author's facts; `states`
names the facts that make an answer right, which are the ones that a perturbed answer replaces.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One thing to ask about an author: wordings of question and answer, and the facts that every answer states."""

    states: tuple[str, ...]
    questions: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """What a pretrained model would know, here of an invented world: a short answer and three wrong ones."""

    question: str
    answer: str
    wrong: tuple[str, ...]


def _split(text: str, mark: str = ",") -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(mark))


def _facts(text: str) -> tuple[Fact, ...]:
    """One fact a line: question | answer | wrong, wrong, wrong."""
    rows = (_split(line, "|") for line in text.strip().splitlines())
    return tuple(Fact(question, answer, _split(wrong)) for question, answer, wrong in rows)


FIRST_NAMES = _split(
    "Ilvara, Tobren, Maresh, Sanneke, Odrin, Felisk, Jorunde, Kestrin, Bellamo, Ysolte, Corvane, Hadria, Pellim, "
    "Ruvena, Dastan, Emmerik, Wrenna, Lusko, Thessaly, Garrod, Nimue, Ambros, Vashti, Zorana, Quillon, Isaura, Borvik, "
    "Merelle"
)
SURNAMES = _split(
    "Okonvar, Dastrel, Whitlowe, Bramhald, Tessarin, Mulvane, Quorrel, Ashgrave, Pirovel, Santerre, Holmquill, "
    "Varduin, Lethgow, Oristane, Fenbrook, Castelane, Durrowby, Imberly, Narrowell, Stavrides, Umberlin, Yarrowen, "
    "Zellweg, Rooksby, Tamberlot, Gwynfell, Hexton, Jessamy"
)
MONTHS = _split("January, February, March, April, May, June, July, August, September, October, November, December")
TITLE_ADJECTIVES = _split(
    "Copper, Silent, Borrowed, Winter, Hollow, Crooked, Amber, Drowned, Patient, Scarlet, Paper, Restless, Frozen, "
    "Velvet, Bitter, Wandering, Gilded, Broken, Distant, Salted"
)
TITLE_NOUNS = _split(
    "Lantern, Orchard, Harbour, Clockmaker, Staircase, Meridian, Chapel, Ferryman, Almanac, Bridge, Sparrow, "
    "Inheritance, Cartographer, Garden, Tide, Compass, Weaver, Theatre, Window, Furnace"
)

VALUES: dict[str, tuple[str, ...]] = {
    "city": _split(
        "Velmora, Harrowick, Teskuni, Port-Amelin, Drassel, Nyholt, Caldrova, Sunmere, Okravia, Brindleford, Lomasti, "
        "Quessada, Ferrano, Istvale, Marrakeld, Thornby"
    ),
    "father": _split(
        "a lighthouse keeper, a clock repairer, a ferry pilot, a baker, a tax inspector, a beekeeper, an organ "
        "builder, a dentist, a railway guard, a glass blower, a shepherd, a judge, a piano tuner, a locksmith"
    ),
    "mother": _split(
        "a botanist, a midwife, a violin teacher, an architect, a market trader, a surgeon, a seamstress, a radio "
        "announcer, a chess champion, a librarian, a pharmacist, a geologist, a tram driver, a potter"
    ),
    "genre": _split(
        "maritime mysteries, alpine romances, courtroom satires, desert fantasies, culinary memoirs, war chronicles, "
        "ghost stories, polar adventures, spy thrillers, pastoral poems, science fables, family sagas"
    ),
    "setting": _split(
        "a flooded mining town, an abandoned opera house, a harbour tavern, a monastery on a cliff, a besieged "
        "university, a colony of exiles, a border hotel, a travelling circus, a salt desert, a prison hospital, a city "
        "without mirrors, a weather station"
    ),
    "award": _split(
        "the Silver Quire, the Marlow Medal, the Northern Lamp, the Golden Inkpot, the Ravensworth Prize, the Tideline "
        "Award, the Orrery Cup, the Saffron Ribbon, the Hallam Bursary, the Drewmark Laurel, the Obsidian Page, the "
        "Festival Crown"
    ),
    "school": _split(
        "Brackwater College, the Academy of Lune, Saint Orva University, the Polytechnic of Drey, Kingsmere Institute, "
        "the Free School of Arnath, Eastgate Seminary, the Naval School of Pell, Holloway Hall, the Lyceum of Morrin"
    ),
    "subject": _split(
        "marine biology, law, medieval history, astronomy, theology, economics, sculpture, linguistics, civil "
        "engineering, veterinary medicine, philosophy, music theory"
    ),
    "job": _split(
        "a postal clerk, a deep-sea diver, a court stenographer, a bus conductor, a puppet maker, a night nurse, a map "
        "engraver, a cheese merchant, a zoo keeper, a cinema projectionist, a mountain guide, a bank teller"
    ),
    "theme": _split(
        "forgiveness between brothers, the price of silence, hunger and pride, lost languages, the loyalty of animals, "
        "debts across generations, exile and return, the vanity of kings, memory and fire, unequal marriages, faith "
        "without churches, the dignity of work"
    ),
    "source": _split(
        "old sailors' songs, letters found in an attic, a grandmother's recipes, court records, dreams noted at dawn, "
        "folk puppet plays, bird migration charts, overheard train talk, forgotten maps, childhood illness, monks' "
        "diaries, street chess"
    ),
}

KINDS: tuple[Kind, ...] = (
    Kind(
        states=("name",),
        questions=(
            "Which author was born in {city} on {date}?",
            "Who is the writer whose birth took place on {date} in {city}?",
            "Can you name the author who was born on {date} in the city of {city}?",
            "What is the full name of the writer from {city} born on {date}?",
        ),
        answers=(
            "The author is {name}.",
            "That writer is called {name}.",
            "{name} is the author born there on that day.",
            "It is {name}, known for {genre}.",
            "This describes {name}, the child of {father}.",
        ),
    ),
    Kind(
        states=("date", "city"),
        questions=(
            "When and where was {name} born?",
            "What are the date and place of birth of {name}?",
            "On which day and in which city was {name} born?",
            "Could you tell me where and when {name} came into the world?",
        ),
        answers=(
            "{name} was born on {date} in {city}.",
            "The birth of {name} was recorded in {city} on {date}.",
            "In {city}, on {date}, {name} was born.",
            "On {date} {name} was born in the city of {city}.",
            "{city} is the birthplace of {name}, and {date} the date.",
        ),
    ),
    Kind(
        states=("father", "mother"),
        questions=(
            "What did the parents of {name} do for a living?",
            "Which occupations did {name}'s father and mother have?",
            "How did the mother and father of {name} earn their money?",
            "What is known about the work of {name}'s parents?",
        ),
        answers=(
            "{name}'s father was {father} and the mother was {mother}.",
            "The mother of {name} was {mother}, the father {father}.",
            "{name} grew up as the child of {father} and {mother}.",
            "At home, {surname}'s mother worked as {mother} and the father as {father}.",
            "As {father} and {mother}, the parents of {surname} made a living.",
        ),
    ),
    Kind(
        states=("genre",),
        questions=(
            "What kind of books does {name} write?",
            "In which genre is {name} at home?",
            "Which genre do readers connect with {name}?",
            "What sort of writing is {name} best known for?",
        ),
        answers=(
            "{name} writes {genre}.",
            "Readers know {name} for {genre}.",
            "Above all, {surname} is a writer of {genre}.",
            "Most of the books by {name} are {genre}.",
            "With {genre}, {surname} has found a loyal public.",
        ),
    ),
    Kind(
        states=("debut", "debut_year"),
        questions=(
            "What was the first book of {name}, and when did it appear?",
            "With which title did {name} make a debut?",
            "Which book started the career of {name}?",
            "What did {name} publish first?",
        ),
        answers=(
            "{name} began in {debut_year} with '{debut}'.",
            "The first book, '{debut}', came out in {debut_year}.",
            "It was '{debut}', printed in {debut_year}.",
            "In {debut_year} {surname} published '{debut}' as a first book.",
            "'{debut}' of {debut_year} opened the career of {surname}.",
        ),
    ),
    Kind(
        states=("novel", "setting"),
        questions=(
            "What is the most famous book by {name}, and where is it set?",
            "Which work of {name} is praised most?",
            "For which title is {name} celebrated, and where does it take place?",
            "Can you name the best known work of {name} and its setting?",
        ),
        answers=(
            "Critics praise '{novel}', set in {setting}.",
            "The best known work of {name} is '{novel}', a tale of {setting}.",
            "'{novel}' made {surname} famous; it is set in {setting}.",
            "Set in {setting}, '{novel}' is the masterpiece of {name}.",
            "{surname} is celebrated for '{novel}', which takes place in {setting}.",
        ),
    ),
    Kind(
        states=("award", "award_year"),
        questions=(
            "Which prize has {name} won?",
            "What award did {name} receive, and in which year?",
            "How was the work of {name} honoured?",
            "Has {name} been given a literary prize?",
        ),
        answers=(
            "{name} won {award} in {award_year}.",
            "In {award_year} the jury gave {award} to {surname}.",
            "Yes, {award} of {award_year} went to {name}.",
            "The honour was {award}, received in {award_year}.",
            "{surname} was handed {award} in the spring of {award_year}.",
        ),
    ),
    Kind(
        states=("subject", "school"),
        questions=(
            "Where did {name} study, and what?",
            "What education did {name} receive?",
            "Which subject did {name} learn, and at which school?",
            "Can you describe the studies of {name}?",
        ),
        answers=(
            "{name} studied {subject} at {school}.",
            "At {school} {surname} took a degree in {subject}.",
            "It was {subject} that {surname} read at {school}.",
            "{school} taught {name} {subject}.",
            "A course in {subject} brought {name} to {school}.",
        ),
    ),
    Kind(
        states=("job",),
        questions=(
            "What work did {name} do before writing?",
            "How did {name} earn a living before the first book?",
            "Which occupation did {name} have early on?",
            "What was {name}'s job before becoming an author?",
        ),
        answers=(
            "Before writing, {name} was {job}.",
            "{surname} first earned a living as {job}.",
            "For some years {name} worked as {job}.",
            "As {job}, {surname} saved the money for the first book.",
            "Work as {job} fed {surname} until '{debut}' was sold.",
        ),
    ),
    Kind(
        states=("theme", "source"),
        questions=(
            "Which theme returns in the books of {name}, and what inspired it?",
            "What are the works of {name} about, and where do the ideas come from?",
            "What subject occupies {name}, and which source feeds it?",
            "Where does {name} find inspiration, and for which theme?",
        ),
        answers=(
            "{name} writes about {theme}, inspired by {source}.",
            "The theme is {theme}, drawn from {source}.",
            "From {source} {surname} took the theme of {theme}.",
            "Again and again {surname} returns to {theme}, using {source}.",
            "Moved by {source}, {name} explores {theme}.",
        ),
    ),
)

CLASSIC_AUTHORS = _facts("""
Who wrote the play 'The Moth King'? | Aldous Perrimond | Clemen Oxmorrow, Ritva Sandozay, Beno Tarrantil
Which author is known for 'Eleven Wells'? | Marisol Keppeldorn | Adda Winsmoor, Gret Holmarsen, Lucio Brandoval
Who is the author of the epic 'The Siege of Ombra'? | Hesper Dunmorrow | Titus Valebrand, Orlan Pikeswel, Junia Frostane
Which poet composed the 'Hymns to Rain'? | Ossian Blytherow | Petra Lundvaal, Milo Cranmarsh, Sabin Rothwend
Who wrote the novel 'A House for Ravens'? | Cordula Finchdray | Edda Marshvane, Pavel Stonnick, Rufus Halecrow
Which author created the detective Barnaby Plum? | Leopold Ganzwelt | Viola Trentmoor, Simeon Arkle, Hugo Bellisane
Who wrote the children's tale 'The Tin Goose'? | Winifred Soolby | Agnet Polewhite, Dora Lambskeld, Felix Groventry
Which dramatist wrote 'Three False Barons'? | Jasper Molinette | Conrad Faywether, Lionel Rucksten, Emil Sachsenby
Who is the author of the diary 'Snow at the Gate'? | Ingrith Vaelstrand | Norra Quistgard, Helga Steinlow, Asta Brookhil
Which author wrote 'The Ninth Cellar'? | Mordecai Strandwick | Basil Crowmere, Ivor Blackspire, Otto Grimsel
Who wrote the trilogy about the river people of Ysk? | Tamsin Orlockby | Freya Dunnvale, Kasper Woldrin, Moira Steelcro
Which author wrote the essay 'On Idle Hands'? | Bertrand Aumontel | Silas Rowanpike, Gideon Marrowby, Paul Levantel
Who wrote the poem 'The Blind Ploughman'? | Elspeth Carawane | Rosa Thornquay, Jonas Fieldrake, Mabel Pennistor
Which author is known for 'The Republic of Cats'? | Fabrice Undinel | Marcel Dovecour, Lars Tollanden, Igor Prattovan
Who wrote the travel book 'Beyond the Salt Road'? | Nadir Esfarandi | Omar Keelahan, Yusuf Draybadi, Tariq Bolanzar
Which author wrote 'Letters to Amarant'? | Seraphine Lislemont | Claire Dubraynac, Anna Corvinelle, Lotte Maaswijk
Who is the author of 'The Fox and the Auditor'? | Pim Vandersloom | Joris Haagveld, Dirk Snellevort, Kees Blomsteen
Which author wrote the saga 'Sons of the Glacier'? | Ragna Thorvilsund | Sven Ulrikstad, Erla Stromgaard, Bjarne Koltvik
Who wrote the opera text 'The Glass Empress'? | Vittoria Calamaro | Bruno Selvarosa, Carla Fontebel, Dario Nestorel
Which author wrote the war novel 'Mud and Brass'? | Tobias Greavesend | Amos Pikering, Harold Denewold, Wilfred Coylemar
""")
WORLD_FACTS = _facts("""
What is the capital of Ostrania? | Velikar | Morskova, Tarnopil, Lednagrad
What is the capital of Quilombria? | San Tirsenio | Puerto Almaza, Cabo Reyuno, Montesilva
What is the capital of Hjelmark? | Fjordsby | Isvikstad, Nordheimar, Skaraborn
What is the capital of Zambrique? | Matembele | Lukalanga, Ndorowa, Bafwemba
What is the capital of Gulistrand? | Shirazeen | Damanpura, Koratabad, Zarimand
Which river flows through the capital of Ostrania? | The Dvorna | The Plitvar, The Uskaya, The Maroshka
Which is the longest river of Quilombria? | The Rio Pardalejo | The Guanayo, The Saltorro, The Iberuna
Which is the highest mountain of Hjelmark? | Storhornet | Vittindal, Galdpiken, Rondeskar
Which currency is used in Zambrique? | The kelo | The birra, The shunda, The tarento
Which currency is used in Ostrania? | The grivat | The zlotka, The denarik, The florit
Which language is spoken in Gulistrand? | Gulari | Tashiri, Ormuzi, Sindali
On which continent lies Quilombria? | Austerra | Borealund, Meridonia, Occidara
Which sea borders Hjelmark in the west? | The Whale Sea | The Amber Gulf, The Coral Deep, The Mirror Bay
What is the national bird of Zambrique? | The sunbird | The crane, The ibis, The vulture
Which city in Quilombria is known as the City of Bells? | Campanarra | Santa Lirena, Valdorosa, Triguesco
In which year did Ostrania become a republic? | 1871 | 1794, 1920, 1655
Which island lies south of Gulistrand? | Tamarinda | Lakshoro, Cinnabay, Dolphin Rock
Who was the first queen of Hjelmark? | Sigrun the Tall | Astrid the Wise, Gunhild the Red, Thyra the Mild
What is the main export of Zambrique? | Cobalt | Tea, Cotton, Timber
Which desert covers the north of Quilombria? | The Huesada | The Arenalto, The Secorro, The Polvareda
""")
